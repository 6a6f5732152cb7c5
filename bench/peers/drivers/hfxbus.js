// Jobs with a payload, and requests with answers, through hfx-bus: `node hfxbus.js produce|work|answer|ask`.
const { ConnectionManager, Consumer, Producer } = require('hfxbus');
const { connection: address, mark, produce, ask } = require('./orders.js');

const connection = ConnectionManager.standalone(address);

function consume(stream, processor) {
  const consumer = new Consumer(connection, { group: 'workers', concurrency: 100 });
  consumer.process({ stream, fromId: '0', processor }); // also read what was sent before the consumer started
  return consumer.play();
}

async function sent(producer, stream, message, waitFor) {
  const job = producer.job();
  await job.set('inbound', message).push();
  return producer.send({ stream, job, waitFor });
}

const roles = {
  produce() {
    const producer = new Producer(connection);
    produce((batch) => Promise.all(batch.map((message) => sent(producer, 'jobs', message))));
  },
  work() {
    return consume('jobs', async (job) => {
      await job.get('inbound', false).del('inbound').pull();
      await job.resolve();
      mark();
    });
  },
  answer() {
    return consume('requests', async (job) => {
      const { inbound } = await job.get('inbound', false).del('inbound').pull();
      await job.set('outbound', inbound).push();
    });
  },
  async ask() {
    const producer = new Producer(connection);
    await producer.listen();
    ask(async (message) => {
      const job = await sent(producer, 'requests', message, ['workers']);
      await job.finished(10000);
      const { outbound } = await job.get('outbound', false).del('outbound').pull();
      return outbound;
    });
  },
};
roles[process.argv[2]]();
