// Count days with snow, with hfxbus 2.2.0: the group snow of the stream of months. See snow.py.
'use strict';
const { ConnectionManager, Consumer } = require('hfxbus');

const WEEK = 604800000; // ms
const { hostname, port, pathname, username, password } = new URL(process.env.REDIS ?? 'redis://localhost:6379/0');
const connection = ConnectionManager.standalone({
  host: hostname,
  port: Number(port || 6379),
  db: Number(pathname.slice(1) || 0),
  username: username || undefined,
  password: password || undefined,
  keyPrefix: 'figures:jobs',
});
const worker = `${process.env.FIGURES_WORKER ?? 'worker'}-${process.pid}`;
const consumer = new Consumer(connection, { group: 'snow', concurrency: 4, blockTimeout: 1000 });

async function count(job) {
  const { rows } = await job.get('rows').pull();
  const snow = String(rows).split(' ').filter((row) => row.endsWith(',snow')).length;
  await job.set('snow', { snow, worker }, WEEK).push();
}

async function stop() {
  await consumer.pause(); // which waits for jobs in hand
  process.exit(0);
}

consumer.on('error', (error) => console.error(String(error)));
consumer.process({ stream: 'months', fromId: '0', processor: count });
for (const signal of ['SIGTERM', 'SIGINT']) process.once(signal, stop);
console.log(`the group snow is Node's hfxbus ${require('hfxbus/package.json').version}`);
consumer.play();
