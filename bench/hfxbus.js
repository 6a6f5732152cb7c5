// Requests and answers through hfx-bus (npm hfxbus), as in its README, to compare with those through mdispatch.
//
// `node hfxbus.js PORT answer` answers forever. `node hfxbus.js PORT ask` reads lines of two numbers, requests to send
// and requests in flight, and prints JSON: `seconds` for all requests, `p50` seconds for one.
const { createInterface } = require('node:readline');
const { ConnectionManager, Consumer, Producer } = require('hfxbus');

const [port, role] = process.argv.slice(2);
const connection = ConnectionManager.standalone({ host: '127.0.0.1', port: Number(port) });
const body = 'x'.repeat(32);

async function answer() {
  const consumer = new Consumer(connection, { group: 'workers', concurrency: 100 });
  consumer.process({
    stream: 'requests',
    processor: async (job) => {
      const { inbound } = await job.get('inbound', false).del('inbound').pull();
      await job.set('outbound', inbound).push();
    },
  });
  await consumer.play();
}

async function request(producer) {
  const begin = process.hrtime.bigint();
  const job = producer.job();
  await job.set('inbound', body).push();
  await producer.send({ stream: 'requests', waitFor: ['workers'], job });
  await job.finished(10000);
  const { outbound } = await job.get('outbound', false).del('outbound').pull();
  if (outbound !== body) throw new Error(`no answer but ${outbound}`);
  return Number(process.hrtime.bigint() - begin) / 1e9;
}

async function measure(producer, requests, atATime) {
  const waits = [];
  let asked = 0;
  const caller = async () => {
    while (asked++ < requests) waits.push(await request(producer));
  };
  const begin = process.hrtime.bigint();
  await Promise.all(Array.from({ length: atATime }, caller));
  const seconds = Number(process.hrtime.bigint() - begin) / 1e9;
  return { seconds, p50: waits.sort((a, b) => a - b)[Math.floor(waits.length / 2)] };
}

async function ask() {
  const producer = new Producer(connection);
  await producer.listen();
  for await (const order of createInterface({ input: process.stdin })) {
    console.log(JSON.stringify(await measure(producer, ...order.split(' ').map(Number))));
  }
  process.exit(0);
}

process.on('unhandledRejection', (error) => {
  console.error(error);
  process.exit(1);
});
(role === 'ask' ? ask : answer)();
