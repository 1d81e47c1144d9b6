// The health line of a table above Airflow's page of its asset. Airflow has no tabs on this page for plugins, so this
// component is mounted on all pages and shows nothing elsewhere.
import { h, UI, Router, useState, useEffect, call, Ago, size, pagePath, fullName } from './core.js';
import { Go, Health } from './ui.js';

const { Flex, Text } = UI;

async function tableOf(id) {
  const answer = await fetch(new URL(`api/v2/assets/${id}`, document.baseURI), { credentials: 'same-origin' });
  const asset = answer.ok ? await answer.json() : {};
  return String(asset.uri || '').startsWith('lakehouse://') ? call(`tables/${encodeURIComponent(fullName(asset.name))}`) : null;
}

function AssetLine() {
  const { pathname } = Router.useLocation();
  const id = (pathname.match(/^\/assets\/(\d+)/) || [])[1];
  const [page, setPage] = useState(null);
  useEffect(() => {
    let live = true; setPage(null);
    if (id) tableOf(id).then((found) => live && setPage(found), () => live && setPage(null));
    return () => { live = false; };
  }, [id]);
  if (!id || !page) return null;
  const { row } = page;
  return h(Flex, { gap: 4, align: 'center', wrap: 'wrap', borderWidth: 1, borderColor: 'border', borderRadius: 'md', px: 4, py: 2, mb: 3, 'data-lakehouse': 'asset' },
    h(Go, { to: pagePath('table', row.table), fontWeight: 'medium' }, row.table), h(Health, row), row.problems.length ? h(Text, null, row.problems[0].text) : null,
    h(Text, { color: 'fg.muted' }, 'last commit ', h(Ago, { ms: row.numbers.last_commit_ms ?? null, now: page.now_ms }), `, ${size(row.numbers.base_bytes)}`),
    h(Go, { to: `${pagePath('table', row.table)}?tab=timeline` }, 'timeline'));
}

globalThis['Lakehouse asset'] = AssetLine;
globalThis.AirflowPlugin = AssetLine;
