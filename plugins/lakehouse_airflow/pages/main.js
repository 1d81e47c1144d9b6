// The page "Lakehouse" in the navigation. Airflow mounts the component that this module puts on globalThis.
import { h, Router } from './core.js';
import { Fleet } from './fleet.js';

const PAGES = {};

function App() {
  const { pathname } = Router.useLocation();
  const [page, ...rest] = pathname.split('/plugin/lakehouse')[1].split('/').filter(Boolean).map(decodeURIComponent);
  const Page = page === undefined ? Fleet : PAGES[page] || Fleet;
  return h(Page, { parts: rest });
}

globalThis.Lakehouse = App;
globalThis.AirflowPlugin = App;
