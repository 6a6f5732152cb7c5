// Types of bus.js, for editors and TypeScript.

export class BusError extends Error {}
/** Nobody knows whether the call was carried out. */
export class LostError extends BusError {}
export class UnauthorizedError extends BusError {}

/** Return a bus at the gateway `url`, by default `bus` beside the page. */
export function connect(options: { url?: string; secret: string }): Bus;

/** Events: `open`, `lost`, `unauthorized`. */
export interface Bus extends EventTarget {
  queue(name: string): Queue;
  channel(name: string, local?: string, remote?: string): Channel;
  /** Close the websocket for good; what the page has not handled goes back to its queue. */
  close(): void;
}

export interface Peeked {
  readonly text: string;
  readonly id: number;
  json(): any;
}

export interface Message extends Peeked {
  /** Acknowledge this message and all before it. */
  ack(): Promise<void>;
}

export interface AttachOptions {
  /** Seconds for which the queue lives without anybody attached. */
  ttl?: number;
  maxsize?: number;
  discoverable?: boolean;
}

/** As in busmq. */
export interface ConsumeOptions {
  max?: number;
  remove?: boolean;
  reliable?: boolean;
  exclusive?: boolean;
  last?: number;
  index?: number;
}

/** What queues and channels have in common. Event: `error`, whose `detail` is the error. */
interface Remote extends EventTarget {
  readonly name: string;
  ack(id: number): Promise<void>;
  /** Let go of it. */
  leave(): void;
}

// Made from the rows.
interface QueueMethods {
  /** Return where the queue is: `local`, or the URL of another site; null if it is not known. */
  find(): Promise<string | null>;
  /** Return the ttl (s) of the queue; null if it does not exist. */
  ttl(): Promise<number | null>;
  /** Return the most messages that it may hold, 0 without limit; null if it does not exist. */
  maxsize(): Promise<number | null>;
  /** Return whether the queue exists. */
  exists(): Promise<boolean>;
  /** Return how many messages wait. */
  count(): Promise<number>;
  /** Delete all messages, those that are not acknowledged, too. Ids go on where they were. */
  flush(): Promise<void>;
  /** Return the oldest messages, at most `most`, fewer once they have 1 MiB together, and leave them there. */
  peek(most?: number): Promise<Peeked[]>;
}
// The rest is written.

/** Event: `closed`. */
export interface Queue extends Remote, QueueMethods {
  readonly isAttached: boolean;
  attach(options?: AttachOptions): Promise<this>;
  /** Push text, or any value as JSON; the result is the message's id. */
  push(message: unknown): Promise<number>;
  consume(options?: ConsumeOptions): AsyncGenerator<Message, void, void>;
  stop(): Promise<void>;
  metadata(): Promise<Record<string, string>>;
  metadata(field: string): Promise<string | null>;
  metadata(field: string, value: unknown): Promise<void>;
  metadata(fields: Record<string, unknown>): Promise<void>;
  detach(): Promise<void>;
  /** Destroy the queue with its messages. */
  close(): Promise<void>;
}

/** Events: `message` (its `detail` is {text, id}), `connect`, `remote:connect`, `disconnect`, `remote:disconnect`, `end`. */
export interface Channel extends Remote {
  readonly isConnected: boolean;
  connect(options?: AttachOptions & ConsumeOptions): Promise<this>;
  /** As connect, with both roles exchanged. */
  listen(options?: AttachOptions & ConsumeOptions): Promise<this>;
  send(message: unknown): Promise<number>;
  /** Send to a role without connecting. */
  sendTo(endpoint: string, message: unknown): Promise<number>;
  disconnect(): Promise<void>;
  /** End the channel for both ends. */
  end(): Promise<void>;
}
