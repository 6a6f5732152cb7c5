// The work of himporter with Node's http and ioredis, to compare with: `node importer.js REDIS_PORT LIST PORT`.
//
// Requests of one turn of the event loop go into one LPUSH. Answers are read in batches, and removed once handed on.
const http = require('node:http');
const Redis = require('ioredis');

const [redisPort, list, port] = process.argv.slice(2);
const pushing = new Redis(Number(redisPort));
const reading = new Redis(Number(redisPort));
const replyTo = `bench:node:${process.pid}`;
const waiting = new Map();
const HOP = new Set(['connection', 'keep-alive', 'te', 'trailer', 'transfer-encoding', 'upgrade', 'content-length']);
let batch = [];
let last = 0;

function flush() {
  const messages = batch;
  batch = [];
  pushing.lpush(list, ...messages);
}

function ask(request, response, body) {
  const id = `1-${(++last).toString(16)}`;
  const deadline = Date.now() / 1000 + 30;
  const [path, query = ''] = request.url.split('?', 2);
  const headers = [];
  for (let at = 0; at < request.rawHeaders.length; at += 2) {
    const name = request.rawHeaders[at].toLowerCase();
    if (!HOP.has(name)) headers.push([name, request.rawHeaders[at + 1]]);
  }
  headers.push(['x-forwarded-for', request.socket.remoteAddress]);
  const message = { id, replyTo, method: request.method, path, query, headers, deadline, meta: { id, replyTo, deadline } };
  if (body.length) message.body = body.toString();
  waiting.set(id, response);
  if (!batch.length) setImmediate(flush);
  batch.push(JSON.stringify(message));
}

function answered(text) {
  const answer = JSON.parse(text);
  const response = waiting.get(answer.id);
  if (!response) return;
  waiting.delete(answer.id);
  const body = Buffer.from(answer.body ?? '');
  response.writeHead(answer.status, [...answer.headers.flat(), 'content-length', body.length]);
  response.end(body);
}

async function read() {
  let handled = 0;
  for (;;) {
    const commands = reading.pipeline();
    if (handled) commands.ltrim(replyTo, 0, -(handled + 1));
    const found = await commands.blmove(replyTo, replyTo, 'RIGHT', 'RIGHT', 5).lrange(replyTo, -500, -1).exec();
    const answers = found[found.length - 1][1];
    for (let at = answers.length - 1; at >= 0; at--) answered(answers[at]);
    handled = answers.length;
  }
}

http.createServer((request, response) => {
  const parts = [];
  request.on('data', (part) => parts.push(part));
  request.on('end', () => ask(request, response, Buffer.concat(parts)));
}).listen(Number(port), '127.0.0.1');
read();
