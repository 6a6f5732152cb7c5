// A program of peers of Node's hfxbus, with the protocol of tests/bus/busmq_peer.js; each has a connection of its own.
//   [id, "open", role, stream, options, {redis: [url...]}]   roles below; prints [id, "ready", its id]
//   [id, "line", text]   [id, "close"]                       the latter prints [id, "gone"]
// Options of both roles: id, prefix, route ("*": distributed), routes (place by name).
const { ConnectionManager, Consumer, DISTRIBUTED_ROUTING, Producer } = require('hfxbus');
const peers = new Map();

function connect({ prefix, routes = {} }, urls) {
  const nodes = urls.map(url => new URL(url)).map(({ hostname, port }) => ({ host: hostname, port: Number(port) }));
  if (nodes.length === 1) return ConnectionManager.standalone({ ...nodes[0], keyPrefix: prefix });
  for (const [name, place] of Object.entries(routes)) (nodes[place].staticRoutes = nodes[place].staticRoutes || []).push(name);
  return ConnectionManager.nodes({ keyPrefix: prefix, nodes });
}

const error = found => found && typeof found === 'object' ? { name: found.name, message: found.message, code: found.code } : found;
const completions = found => Object.fromEntries(Object.entries(found).map(
  ([group, each]) => [group, each === null ? 'nothing' : each instanceof Date ? 'done' : error(each)]));
const values = found => Object.fromEntries(Object.entries(found).map(
  ([key, each]) => [key, Buffer.isBuffer(each) ? { base64: each.toString('base64') } : each]));

const roles = {
  // A line: {id, set: {key: value}, raw: {key: base64}, wait_for: [group], reject, capped, timeout, get: [key], raw_get: [key]}.
  // Prints ["sent", id], and with wait_for then ["finished", id, {group: "done" or error}, values] or ["failed", id, error].
  async producer(manager, out, stream, o, route) {
    const producer = new Producer(manager);
    if (o.id) producer.id = o.id;
    producer.on(stream, (problem, job, group) => out('completion', job, group, error(problem)));
    producer.on('error', problem => out('error', problem.code));
    await producer.listen();
    out('ready', producer.id);
    return async line => {
      const call = JSON.parse(line), job = producer.job(call.id);
      for (const [key, value] of Object.entries(call.set || {})) job.set(key, value);
      for (const [key, value] of Object.entries(call.raw || {})) job.set(key, Buffer.from(value, 'base64'));
      await job.push();
      await producer.send({ stream, route, job, waitFor: call.wait_for, rejectOnError: call.reject, capped: call.capped });
      if (!call.wait_for) return out('sent', job.id);
      const finished = job.finished(call.timeout && call.timeout * 1000);
      out('sent', job.id);
      try {
        const found = completions(await finished);
        for (const key of call.get || []) job.get(key, false);
        for (const key of call.raw_get || []) job.get(key);
        out('finished', job.id, found, values(await job.pull()));
      } catch (problem) {
        out('failed', job.id, problem.code || completions(problem));
      }
    };
  },
  // Prints ["job", id, value of "in"], does what the value says, and prints ["done", id]: {fail: text, code}, {hang: true},
  // {sleep: s}, {raw: true}: "bin" reversed becomes "bout". Otherwise "out" becomes {echo: value}.
  async consumer(manager, out, stream, o, route) {
    const consumer = new Consumer(manager, { group: o.group, concurrency: o.concurrency || 1, blockTimeout: 300,
      ...(o.id && { id: o.id }), ...(route && { route }) });
    consumer.on('error', problem => out('error', problem.code));
    consumer.process({ stream, fromId: o.start || '0', deadline: o.deadline === undefined ? 30000 : o.deadline * 1000,
      processor: async job => {
        const { in: value } = await job.get('in', false).pull();
        out('job', job.id, value);
        if (value && value.fail) throw Object.assign(new Error(value.fail), value.code && { code: value.code });
        if (value && value.hang) await new Promise(() => {});
        if (value && value.sleep) await new Promise(done => setTimeout(done, value.sleep * 1000));
        if (value && value.raw) {
          const { bin } = await job.get('bin').pull();
          await job.set('bout', Buffer.from(bin).reverse()).push();
        } else await job.set('out', { echo: value }).push();
        out('done', job.id);
      } });
    await consumer.play();
    out('ready', consumer.id);
    return line => line === 'pause' ? consumer.pause().then(() => out('paused')) : consumer.play();
  },
};

async function open(id, role, stream, options, { redis }) {
  const out = (...found) => console.log(JSON.stringify([id, ...found.map(each => each === undefined ? null : each)]));
  const peer = { waiting: [], take: line => peer.waiting.push(line) };
  peers.set(id, peer);
  const manager = connect(options, redis);
  peer.close = async () => {
    await manager.stop({ force: true });
    out('gone');
  };
  const take = await roles[role](manager, out, stream, options, options.route === '*' ? DISTRIBUTED_ROUTING : options.route);
  peer.take = take;
  peer.waiting.forEach(take);
}

require('readline').createInterface({ input: process.stdin }).on('line', line => {
  const [id, what, ...rest] = JSON.parse(line);
  if (what === 'open') open(id, ...rest);
  else if (what === 'line') peers.get(id).take(rest[0]);
  else {
    peers.get(id).close();
    peers.delete(id);
  }
}).on('close', () => process.exit());
process.on('unhandledRejection', problem => {
  if (!String(problem).includes('Connection is closed')) console.error(problem);  // of a consumer that reads as it is closed
});
