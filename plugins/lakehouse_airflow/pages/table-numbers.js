// Numbers of tables that no pass of the scheduler has looked at: read in small groups, one after another.
import { h, useEffect, useState, call, Ago } from './core.js';

const GROUP = 5;
// Numbers that were read less than this time ago are not read again.
const KEEP_MS = 300000;
const kept = new Map();

const isUnseen = (row) => row.looked_ms === null && !row.error;
const isOld = (name) => { const found = kept.get(name); return !found || Date.now() - found.tried > KEEP_MS; };

async function readGroup(names) {
  const words = new URLSearchParams(names.map((name) => ['table', name]));
  try {
    const { tables, as_of_ms: at } = await call(`numbers?${words}`);
    tables.forEach((one) => kept.set(one.table, { ...one, at, tried: Date.now() }));
  } catch (error) {
    names.forEach((name) => kept.set(name, { ...kept.get(name), failed: error.message, tried: Date.now() }));
  }
}

// Returns the rows with the numbers that were read; `reading` and `read` of a row say what its cells show.
export function useTableNumbers(rows) {
  const [, drawn] = useState(0);
  const unseen = rows.filter(isUnseen).map((row) => row.table);
  const wanted = unseen.filter(isOld).join(' ');
  useEffect(() => {
    let live = true;
    (async () => {
      const names = wanted.split(' ').filter(Boolean);
      for (let at = 0; live && at < names.length; at += GROUP) {
        await readGroup(names.slice(at, at + GROUP));
        if (live) drawn((n) => n + 1);
      }
    })();
    return () => { live = false; };
  }, [unseen.join(' ')]);
  return rows.map((row) => (isUnseen(row) ? withNumbers(row, kept.get(row.table)) : row));
}

function withNumbers(row, found) {
  if (!found) return { ...row, reading: true };
  if (found.error) return { ...row, error: found.error, health: 'unreadable', read: found };
  return { ...row, numbers: found.numbers || {}, read: found };
}

// The bytes of the tables whose numbers were read: the catalog's total does not contain them.
export const bytesRead = (rows) => rows.reduce((sum, row) => sum + (row.read ? (row.numbers.base_bytes || 0) + (row.numbers.log_bytes || 0) : 0), 0);

// Says below the health of a table where its numbers are from.
export function ReadNote({ row }) {
  if (row.reading) return h('p', { role: 'status', 'data-muted': true }, 'reading the table ...');
  if (!row.read) return null;
  if (row.read.failed && !row.read.at) return h('p', { 'data-muted': true }, `its numbers were not read: ${row.read.failed}`);
  if (row.read.error) return h('p', { 'data-muted': true }, 'read ', h(Ago, { ms: row.read.at }));
  if (!Object.keys(row.numbers).length) return h('p', { 'data-muted': true }, 'no commit yet: the first rows create the table');
  return h('p', { 'data-muted': true }, 'numbers read ', h(Ago, { ms: row.read.at }), '; services.schedule checks its rules');
}
