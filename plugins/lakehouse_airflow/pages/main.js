// The page "Lakehouse" in the navigation. Airflow mounts the component that this module puts on globalThis.
import { h, Router } from './core.js';
// A module of the first page that others import; here it is requested with them, not after them.
import './ui.js';
import { Fleet, prefetchFleet } from './fleet.js';
import { lazyPage } from './lazy.js';

const PAGES = {
  queue: lazyPage('./queue.js', 'Queue'),
  alarms: lazyPage('./alarms.js', 'Alarms'),
  activity: lazyPage('./activity.js', 'Activity'),
  table: lazyPage('./table.js', 'TablePage'),
};

const partsOf = (pathname) => (pathname.split('/plugin/lakehouse')[1] ?? '').split('/').filter(Boolean).map(decodeURIComponent);

if (globalThis.location.pathname.includes('/plugin/lakehouse') && !partsOf(globalThis.location.pathname).length) prefetchFleet();

function App() {
  const { pathname } = Router.useLocation();
  const [page, ...parts] = partsOf(pathname);
  return h(PAGES[page] || Fleet, { parts });
}

globalThis.Lakehouse = App;
globalThis.AirflowPlugin = App;
