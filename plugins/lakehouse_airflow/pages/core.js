// Shared by all pages: React and Chakra of Airflow's own page, requests, formats, and the state in the URL.
export const { createElement: h, useState, useEffect, useRef, useMemo, useCallback, Children, Fragment } = globalThis.React;
// Airflow 3.1 gives no Chakra UI to plugins.
export const UI = globalThis.ChakraUI ?? (await import('./plain-ui.js')).PlainUI;
export const Router = globalThis.ReactRouterDOM;

const API = 'lakehouse/api/v1/';
const kept = new Map();
// Requests that are on their way: two readers of one document share one request.
const asked = new Map();
// Documents that were read before a component asked for them; its first read is then not needed.
const ready = new Set();

export const apiUrl = (path) => new URL(API + path, document.baseURI).href;

export async function call(path, { method = 'GET', body } = {}) {
  const answer = await fetch(apiUrl(path), {
    method,
    credentials: 'same-origin',
    headers: body === undefined ? {} : { 'Content-Type': 'application/json' },
    body: body === undefined ? undefined : JSON.stringify(body),
  });
  const text = await answer.text();
  let content = {};
  try { content = text ? JSON.parse(text) : {}; } catch { content = { text: text.slice(0, 300) }; }
  if (!answer.ok) {
    const error = new Error(content.text || content.detail || `HTTP ${answer.status}`);
    error.code = content.code; error.status = answer.status;
    throw error;
  }
  return content;
}

function get(path) {
  if (!asked.has(path)) asked.set(path, call(path).finally(() => asked.delete(path)));
  return asked.get(path);
}

// Asks for a document before the component that shows it is mounted. An error is shown by the reader, which asks again.
export function prefetch(path) {
  get(path).then((data) => { kept.set(path, data); ready.add(path); }, () => {});
}

export const query = (values) => {
  const words = new URLSearchParams();
  Object.entries(values).forEach(([name, value]) => {
    if (value !== '' && value !== null && value !== undefined && value !== false) words.set(name, value);
  });
  const text = words.toString();
  return text ? `?${text}` : '';
};

// Documents that were read from the files of a table have the time of the read. The last one is kept for this tab of the browser,
// and is shown while the table is read again, which may take long.
const LAST = 'lakehouse:'; const LONGEST = 400000;
function remember(path, data) {
  kept.set(path, data);
  if (!data.as_of_ms) return;
  try {
    const text = JSON.stringify(data);
    if (text.length <= LONGEST) sessionStorage.setItem(LAST + path, text);
  } catch { Object.keys(sessionStorage).filter((key) => key.startsWith(LAST)).forEach((key) => sessionStorage.removeItem(key)); }
}
function last(path) {
  if (path !== null && !kept.has(path)) {
    try { const text = sessionStorage.getItem(LAST + path); if (text) kept.set(path, JSON.parse(text)); } catch { /* no storage */ }
  }
  return kept.get(path);
}
function forget(path) { kept.delete(path); try { sessionStorage.removeItem(LAST + path); } catch { /* no storage */ } }

// Reads a document, again every `every` ms while the page is visible. The last answer is shown meanwhile.
// `reading` says that the first read of the path, or one that `reload` started, has not ended.
export function useData(path, { every = 0 } = {}) {
  const [state, setState] = useState({ path, data: last(path), error: null, reading: true });
  const [turn, setTurn] = useState(0);
  useEffect(() => {
    if (path === null) return undefined;
    let live = true;
    const read = () => get(path).then(
      (data) => { remember(path, data); if (live) setState({ path, data, error: null, reading: false }); },
      (error) => {
        if ([401, 403, 404].includes(error.status)) forget(path);
        if (live) setState({ path, data: last(path), error, reading: false });
      },
    );
    if (state.path !== path || (turn && !state.reading)) setState({ path, data: last(path), error: null, reading: true });
    if (ready.delete(path)) setState({ path, data: last(path), error: null, reading: false }); else read();
    const timer = every ? setInterval(() => { if (!document.hidden) read(); }, every) : null;
    return () => { live = false; if (timer) clearInterval(timer); };
  }, [path, turn]);
  const mine = state.path === path ? state : { data: last(path), error: null, reading: true };
  return { ...mine, loading: !mine.data && !mine.error, reload: () => setTurn((n) => n + 1) };
}

// One value of the URL's query. An empty value is removed; changing a filter goes back to the first page.
export function useQuery() {
  const [params, setParams] = Router.useSearchParams();
  const set = (changes, { keepPage = false } = {}) => setParams((old) => {
    const next = new URLSearchParams(old);
    if (!keepPage) next.delete('offset');
    Object.entries(changes).forEach(([name, value]) => {
      if (value === '' || value === null || value === undefined || value === false) next.delete(name);
      else next.set(name, value);
    });
    return next;
  }, { replace: true });
  return [(name, fallback = '') => params.get(name) ?? fallback, set];
}

// A table without a namespace is in the namespace `default`.
export const fullName = (table) => (table.includes('.') ? table : `default.${table}`);
export const pagePath = (...parts) => `/plugin/lakehouse/${parts.map(encodeURIComponent).join('/')}`;

// ---------------------------------------------------------------- formats: every number has a unit
const UNITS = ['B', 'kB', 'MB', 'GB', 'TB', 'PB', 'EB'];
export function size(bytes) {
  if (bytes === null || bytes === undefined) return '-';
  let value = bytes; let unit = 0;
  while (Math.abs(value) >= 999.95 && unit < UNITS.length - 1) { value /= 1000; unit += 1; }
  return `${unit ? value.toFixed(1) : Math.round(value)} ${UNITS[unit]}`;
}
export const count = (value) => (value === null || value === undefined ? '-' : Number(value).toLocaleString('en-US'));
export function seconds(value) {
  if (value === null || value === undefined) return '-';
  const s = Math.max(0, value);
  if (s > 0 && s < 1) return `${Math.round(s * 1000)} ms`;
  if (s < 90) return `${Math.round(s)} s`;
  if (s < 5400) return `${Math.round(s / 60)} min`;
  if (s < 172800) return `${(s / 3600).toFixed(s < 36000 ? 1 : 0)} h`;
  return `${Math.round(s / 86400)} days`;
}
const zone = () => { try { return JSON.parse(localStorage.getItem('timezone')) || 'UTC'; } catch { return localStorage.getItem('timezone') || 'UTC'; } };
export function absolute(ms) {
  if (ms === null || ms === undefined) return '';
  let timeZone = zone();
  try { new Intl.DateTimeFormat('sv-SE', { timeZone }); } catch { timeZone = 'UTC'; }
  const text = new Intl.DateTimeFormat('sv-SE', { timeZone, dateStyle: 'short', timeStyle: 'medium' }).format(new Date(ms));
  return `${text} ${timeZone}`;
}
export function Ago({ ms, now = Date.now(), ahead = false }) {
  if (ms === null || ms === undefined) return h('span', null, '-');
  const gap = (now - ms) / 1000;
  const text = gap >= 0 ? `${seconds(gap)} ago` : `in ${seconds(-gap)}`;
  return h('time', { dateTime: new Date(ms).toISOString(), title: absolute(ms) }, ahead ? text : text);
}
