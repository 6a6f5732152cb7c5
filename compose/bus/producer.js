// Push the readings of a list to a queue, with busmq 3.1.0; pause and resume as the consumer says.
'use strict';
const Bus = require('busmq');
const redis = require('redis');

const [SOURCE, TAKEN, READINGS, CONTROL] = ['temps:in', 'temps:in:taken', 'temps:readings', 'temps:control'];
const TTL = 600; // seconds
const BATCH = 500;
const url = process.env.REDIS;
const client = redis.createClient(url);
const bus = Bus.create({ redis: [url], logger: { level: 'error' } });
let goes = true;
let stops = false;

function call(command, ...words) {
  return new Promise((resolve, reject) =>
    client[command](...words, (error, reply) => (error ? reject(error) : resolve(reply))));
}

function push(queue, row) {
  return new Promise((resolve, reject) => queue.push(row, (error, id) => (error ? reject(error) : resolve(id))));
}

function once(object, event) {
  return new Promise((resolve) => object.once(event, resolve));
}

async function run() {
  bus.connect();
  await once(bus, 'online');
  const queue = bus.queue(READINGS);
  queue.attach({ ttl: TTL });
  await once(queue, 'attached');
  const control = bus.channel(CONTROL, 'producer', 'consumer');
  control.on('message', (message) => { goes = message === 'resume'; });
  control.connect({ ttl: TTL });
  await once(control, 'connect');
  while (!stops) {
    const rows = await call('lrange', TAKEN, 0, -1); // what a run before has left comes first
    if (goes && rows.length === 0) {
      const several = client.batch();
      for (let i = 0; i < BATCH; i += 1) several.rpoplpush(SOURCE, TAKEN);
      const replies = await new Promise((resolve, reject) =>
        several.exec((error, found) => (error ? reject(error) : resolve(found))));
      rows.push(...replies.filter((row) => row !== null).reverse());
    }
    if (rows.length > 0) {
      await Promise.all(rows.reverse().map((row) => push(queue, row)));
      await call('del', TAKEN);
    } else {
      await new Promise((resolve) => setTimeout(resolve, 20));
    }
  }
  process.exit(0);
}

process.on('SIGTERM', () => { stops = true; });
process.on('SIGINT', () => { stops = true; });
console.log(`the producer is Node's busmq ${require('busmq/package.json').version}`);
run().catch((error) => { console.error(error); process.exit(1); });
