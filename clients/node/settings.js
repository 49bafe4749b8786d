// Settings, dialling, back-off and names: what the other parts share.
import { once } from 'node:events';
import fs from 'node:fs';
import http from 'node:http';
import https from 'node:https';
import amqp from 'amqplib';

export const DIAL_TIMEOUT_MS = 5000;
export const BODY_BYTES_MAX = 1 << 20;
const env = (name) => process.env[`MESSAGEBUS_${name}`] || '';
export const sleep = (ms) => new Promise((done) => setTimeout(done, ms));

export function fromEnv() {
  return {
    broker: env('BROKER'), listUrl: env('LIST_URL'), user: env('USER'), passwordFile: env('PASSWORD_FILE'),
    cluster: env('CLUSTER'), clientId: env('CLIENT_ID'), tls: env('TLS') === 'true', ca: env('TLS_CA_FILE'),
    cert: env('TLS_CERT_FILE'), key: env('TLS_KEY_FILE'), serverName: env('TLS_SERVER_NAME'),
  };
}

// Read at every dial: they may have changed.
const password = (s) => fs.readFileSync(s.passwordFile, 'utf8').trim();

function tlsOptions(s) {
  if (!s.tls) return {};
  const own = s.cert ? { cert: fs.readFileSync(s.cert), key: fs.readFileSync(s.key) } : {};
  return { ca: fs.readFileSync(s.ca), ...own };
}

// amqplib connects once and never again by itself, unless its option `recovery` is given.
export async function dial(s, broker) {
  const at = broker.lastIndexOf(':');
  const options = { ...tlsOptions(s), timeout: DIAL_TIMEOUT_MS, noDelay: true, clientProperties: { connection_name: s.clientId } };
  if (s.tls && broker === s.broker && s.serverName) options.servername = s.serverName;
  const connection = await amqp.connect({
    protocol: s.tls ? 'amqps' : 'amqp', hostname: broker.slice(0, at).replace(/^\[|\]$/g, ''),
    port: Number(broker.slice(at + 1)), username: s.user, password: password(s), heartbeat: 10,
  }, options);
  connection.on('error', () => {});
  return connection;
}

// Ends a connection. Its channel first: a connection that is closed at once may take the last acks with it.
export async function hangUp(connection, channel) {
  const socket = connection && connection.connection.stream;
  if (!socket || socket.destroyed) return;
  const late = setTimeout(() => socket.destroy(), 1000);
  try {
    if (channel) await channel.close();
    await connection.close();
  } catch {
    socket.destroy();
  }
  clearTimeout(late);
}

export class Backoff {
  failures = 0;
  refusals = 0;
  after(fault) {
    const refused = /terminated by server: 403/.test(String(fault && fault.message));
    if (refused) console.error(`login refused: ${fault.message}`);
    const [first, most, n] = refused ? [1000, 30000, this.refusals++] : [100, 5000, this.failures++];
    const wait = Math.min(first * 2 ** Math.min(n, 10), most);
    return wait / 2 + Math.random() * wait / 2;
  }
}

// Asks an agent. Rejects on anything but a whole answer.
export async function ask(s, { path, method = 'GET', body, timeoutMs, signal }) {
  const options = { method, ...tlsOptions(s), agent: false, signal, auth: `${s.user}:${password(s)}` };
  if (s.serverName) options.servername = s.serverName;
  if (body) {
    options.headers = { 'Content-Type': 'application/json', 'Content-Length': Buffer.byteLength(body) };
  }
  const request = (s.tls ? https : http).request(new URL(path, s.listUrl), options);
  request.setTimeout(timeoutMs, () => request.destroy(new Error('no answer')));
  request.on('error', () => {}); // what comes behind the head ends the loop below
  const [answer] = await once(request.end(body), 'response');
  const parts = [];
  let size = 0;
  for await (const part of answer) {
    if ((size += part.length) > BODY_BYTES_MAX) throw new Error('too large');
    parts.push(part);
  }
  return { status: answer.statusCode, body: Buffer.concat(parts) };
}

const isName = (name) => /^[A-Za-z0-9_][A-Za-z0-9_.-]{0,119}$/.test(name) && !/^(amq|mb)\./.test(name);

// What a destination is published to; undefined for a bad name.
export function exchangeOf(to) {
  const name = to.replace(/^queue:/, '');
  return isName(name) ? (to === name ? `mb.topic/${name}` : `mb.to/${name}`) : undefined;
}

export function sourceOf(from) {
  const name = from.replace(/^queue:/, '');
  const own = from === name ? `mb.sub/${name}` : `mb.queue/${name}`;
  return { name: from, queue: own, park: `mb.park/${name}` };
}
