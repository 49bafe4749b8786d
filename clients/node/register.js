// register: has names exist on every broker.
'use strict';
const { ask, Backoff, sleep, DIAL_TIMEOUT_MS } = require('./settings');

const WITHIN_MS = 30000;

// Resolves with {complete, final, why}; final: asking again does not help.
async function register(settings, wanted) {
  const until = Date.now() + WITHIN_MS;
  const waits = new Backoff();
  for (;;) {
    const told = await once(settings, wanted);
    if (told.complete || told.final || Date.now() > until) return told;
    await sleep(waits.after());
  }
}

async function once(settings, wanted) {
  try {
    const body = JSON.stringify({ wanted, alive: true });
    const answer = await ask(settings, { path: '/topology', method: 'POST', body, timeoutMs: 2 * DIAL_TIMEOUT_MS });
    const text = answer.body.toString();
    if ([400, 401, 403, 429].includes(answer.status)) return { complete: false, final: true, why: text };
    const told = JSON.parse(text);
    return { complete: answer.status === 200 && told.complete === true, final: told.mismatch === true, why: text };
  } catch (fault) {
    return { complete: false, final: false, why: String(fault) };
  }
}

module.exports = { register };
