// Summarise months of weather: fetch a task, do it, acknowledge it. Needs Node 18 and no package. See worker.py.
'use strict';

const environ = process.env;
const queue = `${environ.QUEUE_URL ?? 'http://localhost:8080'}/queues/summary`;
const workerId = environ.QUEUE_WORKER ?? 'node';
const timeToRecover = Number(environ.QUEUE_LEASE ?? 30);
const seconds = Number(environ.QUEUE_WORK_SECONDS ?? 0);
const headers = { 'Content-Type': 'application/json' };
if (environ.QUEUE_WORKER_TOKEN) headers.Authorization = `Bearer ${environ.QUEUE_WORKER_TOKEN}`;
const stopping = new AbortController();

const sleep = (time) => new Promise((resolve) => setTimeout(resolve, time * 1000));

function post(verb, body, signal) {
  return fetch(`${queue}/${verb}`, { method: 'POST', headers, body: JSON.stringify(body), signal });
}

function outcome({ month, rows }, attempt) {
  const days = rows.split(' ').filter(Boolean).map((row) => row.split(','));
  if (days.length === 0) return { error: { type: 'NoRows', message: `no rows of ${month}` } };
  const warmest = days.map((day) => Number(day[2]));
  const max = Math.max(...warmest);
  if (max >= 33 && attempt === 1) return { error: { type: 'LookTwice', message: `${month} is hot: look twice` } };
  const mean = Number((warmest.reduce((sum, one) => sum + one, 0) / days.length).toFixed(2));
  const rainy = days.filter((day) => Number(day[1]) > 0).length;
  return { result: { month, days: days.length, mean, max, rainy, worker: workerId } };
}

async function work() {
  const answer = await post('fetch', { workerId, timeToRecover, wait: 20 }, stopping.signal);
  if (answer.status === 204) return;
  if (answer.status !== 200) throw new Error(`fetch: ${answer.status}`);
  const { taskToken, attempt, value } = await answer.json();
  await post('heartbeat', { taskToken, progress: { reading: value.month } }); // its lease begins again
  await sleep(seconds);
  const ack = await post('ack', { taskToken, ...outcome(value, attempt) });
  if (ack.status !== 200) console.log(`${value.month}: ${ack.status}, it is not acknowledged`);
}

async function run() {
  while (!stopping.signal.aborted) {
    try {
      await work();
    } catch (error) { // away, or it does not know the token yet
      if (!stopping.signal.aborted) await sleep(0.5);
    }
  }
  process.exit(0);
}

for (const signal of ['SIGTERM', 'SIGINT']) process.on(signal, () => stopping.abort());
run();
