// The model of lineage: a layer and a row for each node. Pure: no DOM, tested apart.

// Layers by the longest path from a node without inputs; a cycle does not add layers beyond the number of nodes.
export function layersOf(nodes, edges) {
  const layer = new Map(nodes.map((n) => [n.id, 0])); const ids = new Set(layer.keys());
  const known = edges.filter((e) => ids.has(e.source) && ids.has(e.target) && e.source !== e.target);
  const open = new Set(); const done = new Set(); const forward = [];
  // Edges that close a cycle are drawn, but place nothing.
  const visit = (id) => { open.add(id); known.filter((e) => e.source === id).forEach((e) => { if (open.has(e.target)) return; forward.push(e); if (!done.has(e.target)) visit(e.target); }); open.delete(id); done.add(id); };
  nodes.forEach((n) => { if (!done.has(n.id)) visit(n.id); });
  for (let turn = 0; turn < nodes.length; turn += 1) {
    let moved = false;
    forward.forEach((e) => { if (layer.get(e.target) < layer.get(e.source) + 1) { layer.set(e.target, layer.get(e.source) + 1); moved = true; } });
    if (!moved) break;
  }
  // A node without inputs stands directly before its first target.
  nodes.forEach((n) => { if (!forward.some((e) => e.target === n.id)) { const next = forward.filter((e) => e.source === n.id).map((e) => layer.get(e.target)); if (next.length) layer.set(n.id, Math.min(...next) - 1); } });
  return layer;
}

export const BOX = { width: 230, height: 52, gapX: 90, gapY: 18 };

// Positions: columns are layers; rows follow the middle of their inputs, so that few edges cross.
export function placed({ nodes, edges }) {
  const layer = layersOf(nodes, edges); const columns = [];
  nodes.forEach((n) => { const i = layer.get(n.id); (columns[i] = columns[i] || []).push(n); });
  const row = new Map();
  columns.forEach((column) => {
    const middle = (n) => { const rows = edges.filter((e) => e.target === n.id && row.has(e.source)).map((e) => row.get(e.source)); return rows.length ? rows.reduce((a, b) => a + b, 0) / rows.length : Number.MAX_SAFE_INTEGER; };
    const order = column.map((n) => [middle(n), n]).sort((a, b) => a[0] - b[0]); order.forEach(([, n], i) => row.set(n.id, i));
  });
  const tallest = Math.max(1, ...columns.map((column) => column.length));
  const boxes = new Map(nodes.map((n) => { const i = layer.get(n.id); const lift = ((tallest - columns[i].length) * (BOX.height + BOX.gapY)) / 2; return [n.id, { ...n, x: i * (BOX.width + BOX.gapX), y: lift + row.get(n.id) * (BOX.height + BOX.gapY) }]; }));
  return { boxes, width: columns.length * (BOX.width + BOX.gapX) - BOX.gapX, height: tallest * (BOX.height + BOX.gapY) - BOX.gapY };
}
