// Jobs, and requests with answers, through BullMQ: `node bullmq.js produce|work|ask`.
const { Queue, QueueEvents, Worker } = require('bullmq');
const { connection, mark, produce, ask } = require('./orders.js');

const roles = {
  produce() {
    const queue = new Queue('jobs', { connection });
    produce((batch) => queue.addBulk(batch.map((data) => ({ name: 'job', data, opts: { removeOnComplete: true } }))));
  },
  work() {
    const worker = new Worker('jobs', async (job) => job.data, { connection, concurrency: 100 });
    worker.on('completed', () => mark());
  },
  async ask() {
    const queue = new Queue('jobs', { connection });
    const events = new QueueEvents('jobs', { connection });
    await events.waitUntilReady();
    ask(async (body) => (await queue.add('job', body)).waitUntilFinished(events, 10000));
  },
};
roles[process.argv[2]]();
