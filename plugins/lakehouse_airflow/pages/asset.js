// The health line of a table above Airflow's page of its asset. Airflow has no tabs on this page for plugins, so this
// component is mounted on all pages and shows nothing elsewhere.
import { h, UI, Router, Fragment, useData, useState, useEffect, call, Ago, count, size, pagePath, fullName } from './core.js';
import { Failure, Go, Health } from './ui.js';

const { Flex, Text } = UI;
const LATEST = 3;

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
    h(Go, { to: `${pagePath('table', row.table)}?tab=timeline` }, 'timeline'),
    row.error ? null : h(Versions, { table: row.table }));
}

// The newest commits of the table. They are a small read of the table, so they appear after the line.
function Versions({ table }) {
  const { data, error } = useData(`tables/${encodeURIComponent(table)}/description`);
  if (error && !data) return h(Failure, { error });
  const newest = data ? [...data.commits].reverse().slice(0, LATEST) : [];
  if (!newest.length) return null;
  return h(Text, { w: '100%', fontSize: 'sm' }, 'latest versions: ', newest.map((c, i) => h(Fragment, { key: c.instant }, i ? ', ' : '',
    h(Go, { to: `${pagePath('table', table)}?tab=timeline&instant=${c.instant}` }, c.instant), ` ${c.operation.toLowerCase().replaceAll('_', ' ')}, ${count(c.inserts + c.updates + c.deletes)} rows`)));
}

globalThis['Lakehouse asset'] = AssetLine;
globalThis.AirflowPlugin = AssetLine;
