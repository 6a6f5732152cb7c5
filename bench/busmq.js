// Queues and services through busmq, to compare with those of `penstock.bus`: see `bench/bus_ours.py`, whose orders,
// lines of JSON on stdin, this program takes, too. `node busmq.js URL`
const { createInterface } = require('node:readline');
const Bus = require('busmq');

const bus = Bus.create({ redis: [process.argv[2]] });
const say = (value) => console.log(JSON.stringify(value));
const body = (number) => `${number}`.padStart(32, 'x');
const now = () => Number(process.hrtime.bigint()) / 1e9;
const turn = () => new Promise(setImmediate);

function fail(error) {
  console.error(error);
  process.exit(1);
}

function attached(name) {
  const queue = bus.queue(name);
  queue.on('error', fail);
  return new Promise((resolve) => {
    queue.on('attached', () => resolve(queue));
    queue.attach();
  });
}

// Consume `count` messages, and check each; resolve once the last is here.
function consumed(queue, count, options) {
  return new Promise((resolve) => {
    let number = 0;
    queue.on('message', (message, id) => {
      if (message !== body(number)) fail(`message ${number}: ${message}`);
      if (options.reliable) queue.ack(id);
      if (++number === count) resolve();
    });
    queue.consume(options);
  });
}

function closed(queue) {
  return new Promise((resolve) => {
    queue.on('closed', resolve);
    queue.close();
  });
}

const orders = {
  async many(names, count) {
    const queues = await Promise.all(names.map(attached));
    const all = Promise.all(queues.map((queue) => consumed(queue, count, {})));
    await turn();
    const begin = now();
    for (let number = 0; number < count; number++) {
      for (const queue of queues) queue.push(body(number));
      await turn();
    }
    await all;
    const seconds = now() - begin;
    await Promise.all(queues.map(closed));
    say({ seconds });
  },
  async consume(name, count, reliable) {
    const queue = await attached(name);
    const all = consumed(queue, count, { reliable });
    say({});
    await all;
    say({});
    await closed(queue);
    say({});
  },
  async produce(name, count) {
    const queue = await attached(name);
    for (let number = 0; number < count; number++) queue.push(body(number));
    queue.detach();
    say({});
  },
  async serve(name) {
    const service = bus.service(name);
    service.on('request', (data, reply) => reply(null, data));
    service.serve(() => say({}));
  },
  async request(name, count, atATime) {
    const service = bus.service(name);
    await new Promise((resolve) => service.connect(resolve));
    const waits = [];
    let asked = 0;
    const one = (data) =>
      new Promise((resolve) => {
        service.request(data, { reqTimeout: 10000 }, (error, answer) => {
          if (error || answer.number !== data.number) fail(error || answer);
          resolve();
        });
      });
    const caller = async () => {
      while (asked < count) {
        const begin = now();
        await one({ number: asked++ });
        waits.push(now() - begin);
      }
    };
    const begin = now();
    await Promise.all(Array.from({ length: atATime }, caller));
    const seconds = now() - begin;
    service.disconnect();
    say({ seconds, p50: waits.sort((a, b) => a - b)[Math.floor(waits.length / 2)] });
  },
};

process.on('unhandledRejection', fail);
bus.on('error', fail);
bus.once('online', () => {
  createInterface({ input: process.stdin }).on('line', (line) => {
    const [order, ...values] = JSON.parse(line);
    orders[order](...values);
  });
});
bus.connect();
