// Fan-out and jobs through busmq: `node busmq.js fan-out|produce|work`.
const Bus = require('busmq');
const { connection, mark, message, orders } = require('./orders.js');

function attached(bus, name) {
  const queue = bus.queue(name);
  queue.on('error', (error) => { throw new Error(error); });
  return new Promise((resolve) => {
    queue.on('attached', () => resolve(queue));
    queue.attach();
  });
}

const pushed = (queue, body) =>
  new Promise((resolve, reject) => queue.push(body, (error, id) => (error ? reject(error) : resolve(id))));

async function push(bus, names, then) {
  const queues = await Promise.all(names.map((name) => attached(bus, name)));
  orders(async (count) => {
    const pushes = [];
    for (let sent = 0; sent < count; sent++) {
      const body = message();
      for (const queue of queues) pushes.push(pushed(queue, body));
    }
    await Promise.all(pushes);
    then(count);
  });
}

async function work(bus) {
  const queue = await attached(bus, 'jobs');
  queue.on('message', (body, id) => {
    queue.ack(id);
    mark();
  });
  queue.consume({ reliable: true });
}

const roles = {
  'fan-out': (bus) => push(bus, ['out0', 'out1'], mark),
  produce: (bus) => push(bus, ['jobs'], () => {}),
  work,
};
const bus = Bus.create({ redis: [`redis://${connection.host}:${connection.port}`] });
bus.on('online', () => roles[process.argv[2]](bus));
bus.connect();
