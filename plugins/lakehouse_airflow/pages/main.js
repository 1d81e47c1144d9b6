// The page "Lakehouse" in the navigation. Airflow mounts the component that this module puts on globalThis.
import { h, Router } from './core.js';
import { Missing } from './ui.js';
import { Fleet, prefetchFleet } from './fleet.js';
import { lazyPage } from './lazy.js';

const PAGES = {
  queue: lazyPage('./queue.js', 'Queue'),
  alarms: lazyPage('./alarms.js', 'Alarms'),
  activity: lazyPage('./activity.js', 'Activity'),
  scan: lazyPage('./scan.js', 'Scan'),
  table: lazyPage('./table.js', 'TablePage'),
};

const partsOf = (pathname) => (pathname.split('/plugin/lakehouse')[1] ?? '').split('/').filter(Boolean).map(decodeURIComponent);

if (globalThis.location.pathname.includes('/plugin/lakehouse') && !partsOf(globalThis.location.pathname).length) prefetchFleet();

function App() {
  const { pathname } = Router.useLocation();
  const [page, ...parts] = partsOf(pathname);
  if (page && !Object.hasOwn(PAGES, page)) return h(Missing, { title: `There is no page ${page}` }, `Pages of lakehouse are fleet, ${Object.keys(PAGES).join(', ')}.`);
  if (page === 'table' && !parts[0]) return h(Missing, { title: 'The address names no table' }, 'The address of a table is /plugin/lakehouse/table/sales.orders.');
  return h(page ? PAGES[page] : Fleet, { parts });
}

globalThis.Lakehouse = App;
globalThis.AirflowPlugin = App;
