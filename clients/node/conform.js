// The client under test of `python -m clients.conform`: reads orders, tells events, one JSON object a line.
import { createHash } from 'node:crypto';
import readline from 'node:readline';
import { fromEnv } from './settings.js';
import { Publisher } from './publisher.js';
import { Consumer } from './consumer.js';
import { register } from './register.js';

const FINISH_MS = 10000;
const settings = fromEnv();
const publisher = new Publisher(settings);
const open = new Map();
let consumer;
let number = 0;
let ending = false;
const tell = (event) => process.stdout.write(`${JSON.stringify(event)}\n`);

function publish({ to, ids, key, bytes, headers }) {
  for (const id of ids) {
    const raw = Buffer.from(id);
    const body = bytes ? Buffer.alloc(bytes, raw) : raw;
    const own = key ? { ...headers, 'mb-key': key } : headers;
    const properties = { messageId: id, contentType: 'application/octet-stream', headers: own };
    publisher.publish(to, body, properties).then((outcome) => tell({ id, outcome }));
  }
}

function deliver(delivery) {
  const tag = String(++number);
  open.set(tag, delivery);
  const { messageId, contentType } = delivery.properties;
  tell({
    delivered: messageId, tag, broker: delivery.broker, key: delivery.headers['mb-key'] || '', headers: delivery.headers,
    content_type: contentType, attempt: delivery.attempt, sha256: createHash('sha256').update(delivery.body).digest('hex'),
  });
}

async function answer({ do: how, tag, delay_ms: delayMs, reason }) {
  const delivery = open.get(tag);
  open.delete(tag);
  const ok = delivery ? await delivery[how](reason, delayMs) : false; // ack, retry or park
  tell({ answered: tag, ok });
}

async function stop() {
  if (ending) return;
  ending = true;
  if (consumer) await consumer.stop(FINISH_MS);
  await publisher.stop();
  process.stdout.write('', () => process.exit(0));
}

const lines = readline.createInterface({ input: process.stdin });
lines.on('line', (line) => {
  const order = JSON.parse(line);
  switch (order.do) {
    case 'register':
      register(settings, order.wanted).then(({ complete, final, why }) => tell({ registered: complete, final, why }));
      break;
    case 'publish': publish(order); break;
    case 'consume': consumer = new Consumer(settings, order.from, order.prefetch, publisher, deliver); break;
    case 'stop': stop(); break;
    default: answer(order);
  }
});
lines.on('close', stop);
process.on('SIGTERM', stop);
tell({ ready: true, client: 'node' });
