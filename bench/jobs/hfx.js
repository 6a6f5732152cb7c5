// Jobs through hfxbus, as in its README. `node hfx.js PORT` reads orders, one a line, and prints JSON:
// `produce STREAM COUNT SIZE`, `consume STREAM COUNT`, `answer STREAM` (for ever), `ask STREAM COUNT AT_A_TIME`.
const { createInterface } = require('node:readline');
const { ConnectionManager, Consumer, Producer } = require('hfxbus');

const connection = ConnectionManager.standalone({ host: '127.0.0.1', port: Number(process.argv[2]) });
const producer = new Producer(connection);
const now = () => Number(process.hrtime.bigint()) / 1e9;
const WEEK = 604800000;
const AT_A_TIME = 500;

async function produce(stream, count, size) {
  const value = Buffer.alloc(Number(size), 'x');
  const begin = now();
  const one = async () => {
    const job = producer.job();
    await job.set('in', value, WEEK).push();
    await producer.send({ stream, job });
  };
  for (let sent = 0; sent < count; sent += AT_A_TIME) await Promise.all(Array.from({ length: AT_A_TIME }, one));
  return { seconds: now() - begin };
}

async function consume(stream, count) {
  const consumer = new Consumer(connection, { group: `g${now()}`, concurrency: 100 });
  let seen = 0;
  let begin;
  await new Promise((resolve) => {
    consumer.process({ stream, fromId: '0', processor: async (job) => {
      const { in: value } = await job.get('in').pull();
      if (!value) throw new Error('no value');
      if (++seen == count) resolve();
    } });
    begin = now();
    consumer.play();
  });
  const seconds = now() - begin;
  await consumer.pause();
  return { seconds };
}

async function answer(stream) {
  const consumer = new Consumer(connection, { group: 'workers', concurrency: 100 });
  consumer.process({ stream, processor: async (job) => {
    const { in: value } = await job.get('in').pull();
    await job.set('out', value, WEEK).push();
  } });
  await consumer.play();
  return {};
}

async function ask(stream, count, atATime) {
  await producer.listen();
  const waits = [];
  let asked = 0;
  const caller = async () => {
    while (asked++ < count) {
      const begin = now();
      const job = producer.job();
      await job.set('in', Buffer.from('x'.repeat(32)), WEEK).push();
      await producer.send({ stream, waitFor: ['workers'], job });
      await job.finished(10000);
      const { out } = await job.get('out').pull();
      if (out.length != 32) throw new Error(`no answer but ${out}`);
      waits.push(now() - begin);
    }
  };
  const begin = now();
  await Promise.all(Array.from({ length: Number(atATime) }, caller));
  const seconds = now() - begin;
  return { seconds, p50: waits.sort((a, b) => a - b)[Math.floor(waits.length / 2)] };
}

const verbs = { produce, consume, answer, ask };
let listening = false;
process.on('unhandledRejection', (error) => { console.error(error); process.exit(1); });
(async () => {
  for await (const line of createInterface({ input: process.stdin })) {
    const [verb, ...words] = line.split(' ');
    if (verb == 'ask' && listening) producer.listen = async () => {};
    listening = listening || verb == 'ask';
    console.log(JSON.stringify(await verbs[verb](...words)));
  }
  process.exit(0);
})();
