// The page "Lakehouse" in the navigation. Airflow mounts the component that this module puts on globalThis.
import { h, Router } from './core.js';
import { Fleet } from './fleet.js';
import { lazyPage } from './lazy.js';

const PAGES = {
  queue: lazyPage('./queue.js', 'Queue'),
  alarms: lazyPage('./alarms.js', 'Alarms'),
  activity: lazyPage('./activity.js', 'Activity'),
  table: lazyPage('./table.js', 'TablePage'),
};

function App() {
  const { pathname } = Router.useLocation();
  const [page, ...parts] = pathname.split('/plugin/lakehouse')[1].split('/').filter(Boolean).map(decodeURIComponent);
  return h(PAGES[page] || Fleet, { parts });
}

globalThis.Lakehouse = App;
globalThis.AirflowPlugin = App;
