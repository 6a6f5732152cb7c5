// The page to try the gateway: a queue and a channel.
import { connect } from './bus.js';

const at = id => document.getElementById(id);
const MOST = 200;
let bus;
const queues = new Map();
const channels = new Map();

function show(list, mark, text) {
  const row = document.createElement('li');
  const first = document.createElement('span');
  first.textContent = mark;
  row.append(first, text);
  at(list).prepend(row);
  while (at(list).children.length > MOST) at(list).lastChild.remove();
}

function state(text, kind = '') {
  at('state').textContent = text;
  at('state').className = kind;
}

async function queue(name) {
  if (!queues.has(name)) queues.set(name, await bus.queue(name).attach());
  return queues.get(name);
}

async function channel(name, end) {
  const key = `${end} ${name}`;
  if (!channels.has(key)) {
    const found = bus.channel(name);
    found.addEventListener('message', ({ detail }) => show('words', 'got', detail.text));
    found.addEventListener('remote:connect', () => show('words', '', 'the other end is there'));
    found.addEventListener('remote:disconnect', () => show('words', '', 'the other end has left'));
    channels.set(key, await found[end]());
  }
  return channels.get(key);
}

function on(id, event, act) {
  at(id).addEventListener(event, happened => {
    happened.preventDefault();
    act().catch(error => state(error.message, 'bad'));
  });
}

on('login', 'submit', async () => {
  bus?.close();
  queues.clear();
  channels.clear();
  bus = connect({ secret: at('secret').value });
  bus.addEventListener('open', () => {
    state('connected', 'good');
    document.querySelectorAll('button').forEach(each => { each.disabled = false; });
  });
  bus.addEventListener('lost', () => state('connection lost; trying again', 'bad'));
  bus.addEventListener('unauthorized', () => state('the gateway refuses the secret', 'bad'));
});
on('push', 'submit', async () => {
  const id = await (await queue(at('queue').value)).push(at('message').value);
  show('messages', `${id} pushed`, at('message').value);
});
on('consume', 'click', async () => {
  const found = await queue(at('queue').value);
  at('consume').disabled = true;
  for await (const message of found.consume()) show('messages', `${message.id} taken`, message.text);
});
on('send', 'submit', async () => {
  await (await channel(at('channel').value, at('end').value)).send(at('word').value);
  show('words', 'sent', at('word').value);
});
