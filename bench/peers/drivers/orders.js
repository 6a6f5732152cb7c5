// Shared code of the drivers in JavaScript: read orders, write marks. See __init__.py.
const { openSync, writeSync } = require('node:fs');
const { createInterface } = require('node:readline');

const BATCH = 500;
const { hostname: host, port } = new URL(process.env.BENCH_URL);
const marks = openSync(process.env.BENCH_MARKS, 'a');
let last = 0;

const mark = (count = 1) => writeSync(marks, '.'.repeat(count));
const message = () => `message-${String(last++).padStart(24, '0')}`;

async function orders(act) {
  for await (const order of createInterface({ input: process.stdin })) await act(parseInt(order, 10));
  process.exit(0);
}

const produce = (send) =>
  orders(async (count) => {
    for (let sent = 0; sent < count; sent += BATCH) {
      await send(Array.from({ length: Math.min(BATCH, count - sent) }, message));
    }
  });

const ask = (request) =>
  orders(async (count) => {
    const waits = [];
    for (let asked = 0; asked < count; asked++) {
      const body = message();
      const begin = process.hrtime.bigint();
      const answer = await request(body);
      waits.push(Number(process.hrtime.bigint() - begin) / 1e9);
      if (answer !== body) throw new Error(`asked ${body}, was answered ${answer}`);
    }
    console.log(JSON.stringify({ p50: waits.sort((a, b) => a - b)[Math.floor(waits.length / 2)] }));
  });

process.on('unhandledRejection', (error) => {
  console.error(error);
  process.exit(1);
});

module.exports = { connection: { host, port: Number(port) }, mark, message, orders, produce, ask };
