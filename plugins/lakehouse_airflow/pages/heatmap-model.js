// The model of the heat map of partitions: days, measures, levels and the grid. Pure: no DOM, tested apart.
export const DAY_MS = 86400000;

// The day of a partition path, as `2026-01-31` of `day=2026-01-31/city=bern` and of `year=2026/month=1/day=31`, and the other levels.
export function dayOf(path) {
  const levels = path.split('/').map((level) => level.slice(level.indexOf('=') + 1));
  for (let i = 0; i < levels.length; i += 1) {
    const [text, used] = /^\d{4}$/.test(levels[i]) && i + 2 < levels.length ? [`${levels[i]}-${levels[i + 1].padStart(2, '0')}-${levels[i + 2].padStart(2, '0')}`, 3] : [levels[i], 1];
    const match = /^(\d{4})-?(\d{2})-?(\d{2})(?!\d)/.exec(text);
    const ms = match ? Date.parse(`${match[1]}-${match[2]}-${match[3]}T00:00:00Z`) : NaN;
    // A day that the calendar does not have, such as 2026-02-31, is no day.
    if (Number.isFinite(ms) && new Date(ms).getUTCDate() === Number(match[3])) return { ms, other: levels.filter((_, j) => j < i || j >= i + used).join('/') };
  }
  return null;
}

const sum = (parts) => parts.reduce((whole, p) => ({
  partitions: [...whole.partitions, p.partition], bytes: whole.bytes + p.base_bytes + p.log_bytes, log_bytes: whole.log_bytes + p.log_bytes, base_files: whole.base_files + p.base_files,
  small_files: whole.small_files + p.small_files, written_ms: p.written_ms === null ? whole.written_ms : Math.max(whole.written_ms ?? 0, p.written_ms),
}), { partitions: [], bytes: 0, log_bytes: 0, base_files: 0, small_files: 0, written_ms: null });

// Days in order with the sums of their partitions; null unless most partitions have a day.
export function daysOf(partitions) {
  const placed = partitions.map((p) => [dayOf(p.partition), p]); const dated = placed.filter(([day]) => day);
  if (!dated.length || dated.length < partitions.length * 0.8) return null;
  const grouped = new Map(); const others = new Set();
  dated.forEach(([day, p]) => { others.add(day.other); if (!grouped.has(day.ms)) grouped.set(day.ms, []); grouped.get(day.ms).push([day.other, p]); });
  const days = [...grouped].sort(([a], [b]) => a - b).map(([ms, rows]) => ({ ms, ...sum(rows.map(([, p]) => p)), rows: new Map([...new Set(rows.map(([other]) => other))].map((other) => [other, sum(rows.filter(([o]) => o === other).map(([, p]) => p))])) }));
  return { days, others: [...others].sort(), left: partitions.length - dated.length };
}

// Measures: a value of a cell, null for none, and whether a large value needs attention.
export const MEASURES = {
  size: { label: 'Size', of: (c) => c.bytes, unit: 'bytes' },
  small: { label: 'Small files', of: (c) => (c.base_files ? c.small_files / c.base_files : null), unit: 'share' },
  fresh: { label: 'Last write', of: (c, now) => (c.written_ms === null ? null : Math.max(0, now - c.written_ms) / 1000), unit: 'seconds' },
};
export const LEVELS = 5;

// Upper bounds of the levels: equal parts of 100 % for shares, else powers between the smallest and the largest value.
export function bounds(values, unit) {
  const known = values.filter((v) => v !== null && Number.isFinite(v));
  if (unit === 'share') return [0, 0.25, 0.5, 0.75, 1];
  const positive = known.filter((v) => v > 0); if (!positive.length) return [0, 0, 0, 0, 0];
  const low = Math.min(...positive); const high = Math.max(...positive); if (high < low * 1.05) return Array(LEVELS).fill(high);
  const step = (high / low) ** (1 / LEVELS);
  return Array.from({ length: LEVELS }, (_, i) => (i === LEVELS - 1 ? high : low * step ** (i + 1)));
}
// Values that are about equal have the middle level.
export const levelOf = (value, limits) => { if (limits[0] === limits[LEVELS - 1] && value > 0) return 2; const i = limits.findIndex((limit) => value <= limit * (1 + 1e-9)); return i < 0 ? limits.length - 1 : i; };

// Monday is row 0. Weeks are columns from the Monday before the first day.
export const weekday = (ms) => (new Date(ms).getUTCDay() + 6) % 7;
export function calendar(first, last) {
  const start = first - weekday(first) * DAY_MS; const cells = [];
  for (let ms = first; ms <= last; ms += DAY_MS) cells.push({ ms, column: Math.floor((ms - start) / (7 * DAY_MS)), row: weekday(ms) });
  return { cells, columns: cells.length ? cells[cells.length - 1].column + 1 : 0 };
}
