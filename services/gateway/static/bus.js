// Queues and channels of a bus in a browser, through its gateway: one ES module without dependencies.
//
//   import { connect } from './bus.js';
//   const bus = connect({ url: 'wss://a.example/bus', secret: '...' });
//   const queue = await bus.queue('orders').attach();
//   await queue.push({ pears: 3 });
//   for await (const message of queue.consume()) console.log(message.text, message.id);
//
// The websocket is opened again whenever it ends; attach, consume, connect and listeners are repeated until they are as
// they were, and isAttached and isConnected say whether they are. A call that may run twice is repeated, too; push, send,
// sendTo, flush, close and end reject with a LostError if nobody knows whether they were carried out.

const DATA = '1';
const CLOSE = '2';
const FUNCTION = '[Function]';
const PROTOCOL = 'penstock.bus';
const CREDIT = 100;
const FIRST_CALL = 1000;
const LONGEST_WAIT = 10_000;
const SILENCE = 45_000;
const ASK_EVERY = 15_000;

export class BusError extends Error {}
export class LostError extends BusError {}
export class UnauthorizedError extends BusError {}

const encoder = new TextEncoder();
const decoder = new TextDecoder();
const hex = bytes => Array.from(crypto.getRandomValues(new Uint8Array(bytes)), each => each.toString(16).padStart(2, '0')).join('');
const sleep = milliseconds => new Promise(resolve => setTimeout(resolve, milliseconds));
const asText = value => typeof value === 'string' ? value : JSON.stringify(value);
const between = wait => sleep(wait * (0.5 + Math.random() / 2));
const isFinal = error => !(error instanceof BusError) || /^(Unauthorized|WrongCall|Unsuitable): /.test(error.message);
const asMessages = pairs => pairs.map(([text, id]) => ({ text, id, json: () => JSON.parse(text) }));
const errorOf = text => new (String(text).startsWith('Unauthorized: ') ? UnauthorizedError : BusError)(String(text));

/** Return a bus at the gateway `url`; events of it are `open`, `lost` and `unauthorized`. */
export function connect(options) {
  return new Bus(options);
}

class Bus extends EventTarget {
  constructor({ url = new URL('bus', location.href).href, secret }) {
    super();
    this.url = url.replace(/^http/, 'ws');
    this.secret = secret;
    this.objects = new Map();
    this.keep();
  }

  /** Return the queue `name`. */
  queue(name) {
    return new Queue(this, 'queue', [name]);
  }

  /** Return one end of the channel `name`. */
  channel(name, local = 'local', remote = 'remote') {
    return new Channel(this, 'channel', [name, local, remote]);
  }

  /** Close the websocket for good; what the page has not handled goes back to its queue. */
  close() {
    this.closed = true;
    this.socket?.close();
    for (const object of this.objects.values()) object.lose(new BusError('the bus was closed'), true);
  }

  async keep() {
    for (let wait = 100; !this.closed && !this.refused; wait = Math.min(LONGEST_WAIT, 2 * wait)) {
      const begun = Date.now();
      await this.use();
      if (Date.now() - begun > LONGEST_WAIT) wait = 100;
      await between(wait);
    }
  }

  /** Open a websocket and use it until it ends. */
  use() {
    return new Promise(resolve => {
      const socket = this.socket = new WebSocket(this.url, PROTOCOL);
      socket.binaryType = 'arraybuffer';
      let heard = Date.now();
      const watch = setInterval(() => {
        if (Date.now() - heard > SILENCE) socket.close();
        else if (this.isOpen) for (const object of [...this.objects.values()].slice(0, 1)) object.ask();
      }, ASK_EVERY);
      socket.onopen = () => socket.send(JSON.stringify({ secret: this.secret }));
      socket.onmessage = ({ data }) => {
        heard = Date.now();
        if (typeof data !== 'string') return this.received(new Uint8Array(data));
        this.isOpen = true;
        this.version = JSON.parse(data).version ?? 1;
        this.dispatchEvent(new Event('open'));
        for (const object of this.objects.values()) object.create();
      };
      socket.onclose = ({ code }) => {
        clearInterval(watch);
        this.isOpen = false;
        this.refused = code === 4401;
        const error = this.refused ? new UnauthorizedError('the gateway refuses the secret') : new LostError('the websocket was lost');
        for (const object of [...this.objects.values()]) object.lose(error, this.refused);
        this.dispatchEvent(new Event(this.refused ? 'unauthorized' : 'lost'));
        resolve();
      };
    });
  }

  received(frame) {
    const object = this.objects.get(decoder.decode(frame.subarray(0, 16)));
    if (!object) return;
    if (frame[16] === CLOSE.charCodeAt(0)) object.reopen();
    else object.received(decoder.decode(frame.subarray(17)));
  }

  send(channel, kind, text = '') {
    if (this.isOpen && this.socket.readyState === WebSocket.OPEN) this.socket.send(encoder.encode(channel + kind + text));
  }
}

/** An object at the gateway: its channel, the calls to it, and what is repeated once the websocket is open again. */
class Remote extends EventTarget {
  constructor(bus, type, args) {
    super();
    Object.assign(this, { bus, type, args, session: hex(16), answers: new Map(), number: FIRST_CALL, waiting: [] });
    this.open();
  }

  get name() {
    return this.args[0];
  }

  open() {
    this.channel = hex(8);
    this.bus.objects.set(this.channel, this);
    if (this.bus.isOpen) this.create();
    if (this.bus.refused) this.lose(new UnauthorizedError('the gateway refuses the secret'), true);
  }

  /** Forget the channel that the gateway has closed, and open another one a little later. */
  async reopen() {
    this.bus.objects.delete(this.channel);
    this.lose(new LostError('the gateway closed the channel'));
    await sleep(1000);
    if (!this.isLeft) this.open();
  }

  create() {
    this.isReady = this.isCreated = false;
    this.rest = '';
    const message = { type: this.type, methods: METHODS[this.type], args: this.args, session: this.session };
    this.bus.send(this.channel, DATA, JSON.stringify(message));
  }

  received(text) {
    if (!this.isCreated) {
      if (text === 'ready') this.begin();
      else this.lose(errorOf(JSON.parse(text).error), true);
      return;
    }
    const lines = (this.rest + text).split('\n');
    this.rest = lines.pop();
    for (const line of lines) {
      const { method, arguments: values } = JSON.parse(line);
      if (typeof method !== 'number') continue;
      if (method < FIRST_CALL) this.happened(this.heard[method], values);
      else {
        const answer = this.answers.get(method);
        this.answers.delete(method);
        if (answer) values[0] == null ? answer.resolve(values[1]) : answer.reject(errorOf(values[0]));
      }
    }
  }

  /** Bring it into the state that is wanted, until it is; let calls go on after the first attempt. */
  async begin() {
    this.isCreated = true;
    this.refused = undefined;
    this.heard.forEach((event, place) => this.line('on', [event], place));
    const life = this.life = {};
    let said;
    for (let wait = 100; ; wait = Math.min(LONGEST_WAIT, 2 * wait)) {
      const error = await this.replay().then(() => null, failed => failed);
      if (this.life !== life) return;
      if (error && error.message !== said) this.dispatchEvent(new CustomEvent('error', { detail: error }));
      said = error?.message;
      this.isReady = true;
      for (const { resolve } of this.waiting.splice(0)) resolve();
      if (!error || isFinal(error)) return;
      await between(wait);
      if (this.life !== life) return;
    }
  }

  /** Do what is wanted and not so. */
  async replay() {
    if (!this.wanted || this.isThere) return;
    await this.request(...this.wanted);
    this.isThere = true;
  }

  /** Open it by `method`, now and after each reconnect. */
  async openBy(method, options) {
    await this.call(method, options);
    this.wanted = [method, options];
    this.isThere = true;
    return this;
  }

  line(method, values, callback) {
    const arguments_ = Object.fromEntries([...values, ...(callback === undefined ? [] : [FUNCTION])].entries());
    const callbacks = callback === undefined ? {} : { [callback]: ['0', String(values.length)] };
    this.bus.send(this.channel, DATA, JSON.stringify({ method, arguments: [arguments_], callbacks, links: [] }) + '\n');
  }

  /** Wait for the gateway; reject if it refuses. */
  ready() {
    if (this.isReady) return Promise.resolve();
    if (this.refused) return Promise.reject(this.refused);
    return new Promise((resolve, reject) => this.waiting.push({ resolve, reject }));
  }

  request(method, ...values) {
    return new Promise((resolve, reject) => {
      const number = ++this.number;
      this.answers.set(number, { resolve, reject });
      this.line(method, values, number);
    });
  }

  /** Call a method; if it may run twice, again if the websocket was lost before the answer. */
  async call(method, ...values) {
    for (;;) {
      await this.ready();
      if (SINCE[method] > this.bus.version) throw new BusError(`Unsuitable: ${method} needs a gateway of version ${SINCE[method]}, and this is ${this.bus.version}`);
      try {
        return await this.request(method, ...values);
      } catch (error) {
        if (!(error instanceof LostError && AGAIN[this.type].has(method))) throw error;
      }
    }
  }

  /** Call a method that ends what `replay` would open again, once: with the websocket the gateway has left it, too. */
  async endWith(method) {
    await this.ready();
    const former = this.wanted;
    this.wanted = undefined;
    try {
      await this.request(method);
      this.isThere = false;
    } catch (error) {
      if (!(error instanceof LostError)) this.wanted = former;
      if (!(error instanceof LostError && AGAIN[this.type].has(method))) throw error;
    }
  }

  /** Ask for a sign of life. */
  ask() {
    if (this.isReady) this.request(this.type === 'queue' ? 'exists' : 'ack', 0).catch(() => null);
  }

  lose(error, forGood = false) {
    this.isReady = this.isCreated = this.isThere = false;
    this.life = undefined;
    if (forGood) this.refused = error;
    const waiting = [...this.answers.values(), ...(forGood ? this.waiting.splice(0) : [])];
    this.answers.clear();
    for (const { reject } of waiting) reject(error);
    this.dropped(forGood ? error : undefined);
  }

  /** Let go of it. */
  leave() {
    this.isLeft = true;
    this.bus.objects.delete(this.channel);
    this.bus.send(this.channel, CLOSE);
    this.lose(new BusError('it was left'), true);
  }

  handled() {
    if (++this.unreported >= CREDIT || !this.taken.length) {
      if (this.isReady) this.line('handled', [this.unreported]);
      this.unreported = 0;
    }
  }
}

// Made from the rows.
const METHODS = {
  queue: ['on', 'once', 'promisify', 'find', 'ttl', 'maxsize', 'metadata', 'exists', 'count', 'flush', 'peek', 'isAttached', 'attach', 'isConsuming', 'detach', 'push', 'pushAll', 'consume', 'stop', 'ack', 'close', 'handled'],
  channel: ['on', 'once', 'promisify', 'isAttached', 'connect', 'attach', 'listen', 'send', 'sendTo', 'ack', 'disconnect', 'detach', 'end', 'handled'],
};
const AGAIN = {
  queue: new Set(['find', 'ttl', 'maxsize', 'metadata', 'exists', 'count', 'peek', 'isAttached', 'attach', 'isConsuming', 'detach', 'consume', 'stop', 'ack']),
  channel: new Set(['isAttached', 'connect', 'attach', 'listen', 'ack', 'disconnect', 'detach']),
};
const SINCE = {"peek": 2};

class QueueMethods extends Remote {
  /** Return where the queue is: `local`, or the URL of another site; null if it is not known. */
  async find() { return this.call('find'); }
  /** Return the ttl (s) of the queue; null if it does not exist. */
  async ttl() { return this.call('ttl'); }
  /** Return the most messages that it may hold, 0 without limit; null if it does not exist. */
  async maxsize() { return this.call('maxsize'); }
  /** Return whether the queue exists. */
  async exists() { return this.call('exists'); }
  /** Return how many messages wait. */
  async count() { return this.call('count'); }
  /** Delete all messages, those that are not acknowledged, too. Ids go on where they were. */
  async flush() { return this.call('flush'); }
  /** Return the oldest messages, at most `most`, fewer once they have 1 MiB together, and leave them there. */
  async peek(most = 1) { return asMessages(await this.call('peek', most)); }
}
// The rest is written.

class Queue extends QueueMethods {
  heard = ['error', 'closed', 'consuming', 'messages'];
  taken = [];
  unreported = 0;
  last = 0;

  /** Whether messages can be pushed and consumed. */
  get isAttached() { return Boolean(this.isThere); }

  /** Create the queue, or join it; return it. Options: ttl (s), maxsize. */
  async attach(options = {}) {
    await this.openBy('attach', options);
    this.goOn();
    return this;
  }

  /** Push text, or any value as JSON; return the message's id. */
  push(message) {
    return this.call('push', asText(message));
  }

  metadata(...values) { return this.call('metadata', ...values); }

  /** Yield messages {text, id, json(), ack()}. Options as in busmq: reliable, max, remove, index, last. */
  async *consume(options = {}) {
    await this.ready();
    this.consuming = options;
    this.handed = 0;
    this.ended = this.failed = undefined;
    try {
      this.goOn();
      while (!this.ended || this.taken.length) {
        if (this.taken.length) {
          const message = this.taken.shift();
          this.handed++;
          this.handled();
          yield message;
        } else await new Promise(resolve => { this.wake = resolve; });
      }
      if (this.failed) throw this.failed;
    } finally {
      await this.stop();
    }
  }

  /** End the consumption; what was not handed out goes back. */
  async stop() {
    if (!this.consuming) return;
    this.consuming = undefined;
    this.isAsked = false;
    this.taken = [];
    if (this.isReady) {
      this.line('handled', [this.unreported]);
      this.unreported = 0;
      await this.request('stop').catch(() => null);
    }
    this.end();
  }

  /** Acknowledge all messages up to `id`. */
  ack(id) {
    this.last = Math.max(this.last, id);
    return this.call('ack', id);
  }

  async detach() {
    await this.stop();
    await this.endWith('detach');
  }

  /** Destroy the queue with its messages. */
  close() { return this.endWith('close'); }

  /** Consume if that is wanted and not so; what is lost with the websocket follows on the next one. */
  goOn() {
    this.consumeAgain().catch(error => error instanceof LostError || this.end(error));
  }

  async consumeAgain() {
    if (!this.consuming || !this.isThere || this.isAsked) return;
    const { reliable, max } = this.consuming;
    const left = max > 0 ? { max: max - this.handed } : {};
    if (left.max === 0) return this.end();
    this.isAsked = true;
    try {
      await this.request('consume', { ...this.consuming, ...left, ...(reliable ? { last: this.last } : {}) });
    } catch (error) {
      this.isAsked = false;
      throw error;
    }
  }

  end(error) {
    this.ended = true;
    this.failed = error;
    this.wake?.();
  }

  async replay() {
    await super.replay();
    try {
      await this.consumeAgain();
    } catch (error) {
      if (isFinal(error)) this.end(error);
      throw error;
    }
  }

  happened(event, values) {
    if (event === 'messages') {
      for (const message of asMessages(values)) this.taken.push({ ...message, ack: () => this.ack(message.id) });
      this.wake?.();
    } else if (event === 'consuming') {
      if (!values[0] && this.consuming) this.end();
    } else if (event === 'closed') {
      this.wanted = undefined;
      this.isThere = false;
      this.end();
      this.dispatchEvent(new Event('closed'));
    } else this.dispatchEvent(new CustomEvent('error', { detail: errorOf(values[0]) }));
  }

  dropped(error) {
    this.taken = [];
    this.unreported = 0;
    this.isAsked = false;
    if (error) this.end(error);
  }
}

class Channel extends Remote {
  heard = ['error', 'connect', 'remote:connect', 'message', 'disconnect', 'remote:disconnect', 'end'];
  taken = [];
  unreported = 0;

  /** Whether this end is connected. */
  get isConnected() { return Boolean(this.isThere); }

  /** Connect, in the role `local`; events are message (its `detail` is {text, id}), remote:connect and so on. */
  connect(options = {}) { return this.openBy('connect', options); }

  /** As connect, with both roles exchanged. */
  listen(options = {}) { return this.openBy('listen', options); }

  /** Send text, or any value as JSON. */
  send(message) { return this.call('send', asText(message)); }

  /** Send to the role `endpoint` without connecting. */
  sendTo(endpoint, message) { return this.call('sendTo', endpoint, asText(message)); }

  ack(id) { return this.call('ack', id); }
  disconnect() { return this.endWith('disconnect'); }
  end() { return this.endWith('end'); }

  happened(event, values) {
    if (event === 'message') {
      const [text, id] = values;
      this.handled();
      this.dispatchEvent(new CustomEvent('message', { detail: { text, id } }));
    } else if (event === 'error') this.dispatchEvent(new CustomEvent('error', { detail: errorOf(values[0]) }));
    else {
      if (event === 'end') {
        this.wanted = undefined;
        this.isThere = false;
      }
      this.dispatchEvent(new Event(event));
    }
  }

  dropped() {
    this.unreported = 0;
  }
}
