// A program of peers of Node's busmq, see tests/bus/node.py. Lines of stdin are JSON arrays:
//   [id, "open", role, name, options, {redis, driver, federate}]   a peer with a bus of its own
//   [id, "line", text]                                              what the role does with it stands below
//   [id, "close"]                                                   disconnect its bus; prints [id, "gone"]
// Lines of stdout are JSON arrays: [id, event, value...].
const busmq = require('busmq');
const peers = new Map();
const text = value => value instanceof Error ? value.message : value === undefined ? null : value;

function relay(out, from, ...events) {
  for (const event of events) from.on(event, (...values) => out(event, ...values.map(text)));
  return from;
}

const QUEUE = ['attached', 'consuming', 'message', 'closed', 'error'];
const CHANNEL = ['connect', 'remote:connect', 'message', 'remote:disconnect', 'disconnect', 'end', 'error'];

// Each returns what a line does.
const roles = {
  // A line is a call: [method, argument...]; prints ["returned", method, error, value].
  queue(bus, out, name, o) {
    const queue = relay(out, bus.queue(name), ...QUEUE);
    const waits = ['push', 'count', 'exists', 'ttl', 'maxsize', 'metadata', 'flush', 'find'];
    if (o.attach !== false) queue.attach(o);
    if (o.consume) queue.consume(o.consume);
    return line => {
      const [method, ...values] = JSON.parse(line);
      if (waits.includes(method)) queue[method](...values, (error, value) => out('returned', method, text(error), text(value)));
      else queue[method](...values);
    };
  },
  push(bus, out, name, o) {
    const queue = relay(out, bus.queue(name), 'attached', 'error');
    queue.attach(o);
    return line => queue.push(line, (error, id) => out('pushed', text(id)));
  },
  consume(bus, out, name, o) {
    const queue = relay(out, bus.queue(name), ...QUEUE);
    queue.attach(o);
    queue.consume(o);
    return line => line === 'stop' ? queue.stop() : line === 'close' ? queue.close() : queue.ack(Number(line));
  },
  connect(bus, out, name, o) {
    const channel = relay(out, bus.channel(name, o.local, o.remote), ...CHANNEL);
    const open = () => channel[o.listen ? 'listen' : 'connect'](o);
    open();
    return line => {
      if (line === '/disconnect') channel.disconnect();
      else if (line === '/connect') open();
      else if (line === '/end') channel.end();
      else if (line.startsWith('/ack ')) channel.ack(Number(line.slice(5)));
      else if (line.startsWith('/to ')) channel.sendTo(...line.slice(4).split(' '));
      else channel.send(line);
    };
  },
  persist(bus, out, name, o) {
    const object = bus.persistify(name, {}, o.attrs);
    return line => {
      const call = JSON.parse(line);
      if (call.persist) object.persist(call.persist);
      else if (call.load) object.load((error, exists) => out('loaded', exists, o.attrs.map(each => text(object[each]))));
      else Object.assign(object, call).save(error => out('saved', error || null));
    };
  },
  pubsub(bus, out, name) {
    const topic = relay(out, bus.pubsub(name), 'subscribed', 'unsubscribed', 'message', 'error');
    topic.subscribe();
    return line => line === '/unsubscribe' ? topic.unsubscribe() : topic.publish(line.startsWith('{') ? JSON.parse(line) : line);
  },
  // Answers {echo: data}; data says otherwise: {fail: text}, {error: value}, {silent: true}, {parts: [...]}, {stream: [...]}.
  serve(bus, out, name, o) {
    const service = relay(out, bus.service(name), 'serving', 'disconnect', 'error');
    service.on('request', (data, reply) => {
      out('request', text(data));
      if (!data || data.silent) return;
      if (data.fail) reply(Object.assign(new Error(data.fail), { code: 7 }));
      else if (data.error) reply(data.error);
      else if (data.parts) data.parts.forEach((part, at) => reply(null, part, at < data.parts.length - 1));
      else if (data.stream) {
        const stream = reply.createWriteStream();
        data.stream.forEach(part => stream.write(part));
        stream.end();
      } else reply(null, { echo: data });
    });
    service.serve(o);
    return () => service.disconnect(o.grace);
  },
  // A line is a request as JSON; options.notify wants no answer.
  request(bus, out, name, o) {
    const service = relay(out, bus.service(name), 'connected', 'disconnect', 'error');
    service.connect(o);
    const answered = (error, reply) => {
      if (!o.streamReply) return out('reply', text(error), text(reply));
      reply.on('data', part => out('part', part));
      reply.on('end', () => out('parts end'));
    };
    return line => line === '/disconnect' ? service.disconnect()
      : o.notify ? service.request(JSON.parse(line)) : service.request(JSON.parse(line), { ...o }, answered);
  },
  // A server of federation, which its configuration names; nothing else.
  fedserver(bus, out, name, o, configuration) {
    out('listening', configuration.federate.server.address().port);
    return () => null;
  },
  // A queue on the bus behind options.url; a line is a message to push.
  fedclient(bus, out, name, o) {
    const federation = relay(out, bus.federate(bus.queue(name), o.url), 'error', 'unauthorized', 'reconnecting', 'close');
    federation.on('reconnected', () => out('reconnected'));
    let queue;
    federation.on('ready', ready => {
      queue = relay(out, ready, 'error', 'attached', 'consuming', 'message', 'closed');
      queue.attach(o);
      queue.consume(o);
      out('ready');
    });
    return line => queue.push(line, (error, id) => out('pushed', text(id)));
  },
  // Any object on the bus behind options.url; a line is a call: [method, argument...]; prints ["returned", method, value...].
  fedobject(bus, out, name, o) {
    const object = { queue: () => bus.queue(name), channel: () => bus.channel(name, o.local, o.remote),
      pubsub: () => bus.pubsub(name), persistify: () => bus.persistify(name, {}, o.attrs) }[o.type]();
    const waits = ['push', 'count', 'exists', 'ttl', 'maxsize', 'metadata', 'flush', 'find', 'ack', 'save', 'load',
      'pushed', 'consumed', 'isConsuming', 'isAttached', 'publish', 'send', 'sendTo'];
    const federation = relay(out, bus.federate(object, o.url), 'error', 'unauthorized', 'reconnecting', 'close');
    federation.on('reconnected', () => out('reconnected'));
    federation.on('ready', ready => {
      relay(out, ready, ...(o.events || []));
      out('ready');
    });
    return line => {
      const [method, ...values] = JSON.parse(line);
      if (method === 'set') Object.assign(object, values[0]);
      else if (method === 'get') out('got', o.attrs.map(each => text(object[each])));
      else if (waits.includes(method)) object[method](...values, (...found) => out('returned', method, ...found.map(text)));
      else object[method](...values);
    };
  },
};

async function open(id, role, name, options, { redis, driver, federate }) {
  const out = (...values) => console.log(JSON.stringify([id, ...values]));
  const configuration = { redis, driver };
  if (role === 'fedserver') {
    const server = require('http').createServer();
    await new Promise(ready => server.listen(options.port || 0, '127.0.0.1', ready));
    configuration.federate = { server, secret: options.secret, path: options.path };
  } else if (['fedclient', 'fedobject'].includes(role)) configuration.federate = { poolSize: 1, urls: [options.url], secret: options.secret };
  else if (federate) configuration.federate = federate;
  const bus = busmq.create(configuration);
  const peer = peers.get(id);
  peer.close = () => {
    if (redis.length) bus.once('offline', () => out('gone'));
    bus.disconnect();
    if (!redis.length) out('gone');
  };
  bus.on('error', error => out('bus error', String(error)));
  bus.once('online', () => {
    peer.take = roles[role](bus, out, name, options, configuration);
    peer.waiting.forEach(line => peer.take(line));
  });
  bus.connect();
}

require('readline').createInterface({ input: process.stdin }).on('line', line => {
  const [id, what, ...rest] = JSON.parse(line);
  if (what === 'open') {
    const peer = { waiting: [], take: each => peer.waiting.push(each) };
    peers.set(id, peer);
    open(id, ...rest);
  } else if (what === 'line') peers.get(id).take(rest[0]);
  else {
    peers.get(id).close();
    peers.delete(id);
  }
}).on('close', () => process.exit());
