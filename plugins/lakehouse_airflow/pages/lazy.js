// Pages that are loaded when they are opened, so that the first page needs few requests.
import { h } from './core.js';
import { Waiting } from './ui.js';

export function lazyPage(module, name) {
  const Page = globalThis.React.lazy(() => import(module).then((loaded) => ({ default: loaded[name] })));
  return (props) => h(globalThis.React.Suspense, { fallback: h(Waiting) }, h(Page, props));
}
