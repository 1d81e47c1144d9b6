// Measures the pages of the plugin in the DOM: returns the faults of what is shown now, as sentences.
// A promise of an array; `tests/airflow/test_page_pictures.py` runs it at each width and in each theme.
(() => {
  const MOST = 40;
  const faults = new Set();
  const dialog = document.querySelector('[role=dialog]');
  const root = dialog || document.querySelector('[data-lakehouse]');
  if (!root) return ['the page shows nothing of lakehouse'];
  const say = (text) => { if (faults.size < MOST) faults.add(text); };
  const short = (text) => text.trim().replace(/\s+/g, ' ').slice(0, 60);
  const all = (selector, of = root) => [...of.querySelectorAll(selector)];
  const visible = (e) => e.checkVisibility({ opacityProperty: true, visibilityProperty: true }) && e.getBoundingClientRect().width > 0;
  const styles = new Map();
  const styleOf = (e) => { if (!styles.has(e)) styles.set(e, getComputedStyle(e)); return styles.get(e); };
  const walker = document.createTreeWalker(root, NodeFilter.SHOW_TEXT);
  const texts = [];
  while (walker.nextNode()) {
    const node = walker.currentNode;
    if (node.data.trim() && node.parentElement && !node.parentElement.closest('title, style, script, option') && visible(node.parentElement)) texts.push(node);
  }
  const range = document.createRange();
  const linesOf = (node, from, to) => {
    range.setStart(node, from); range.setEnd(node, to);
    return [...range.getClientRects()].filter((r) => r.width > 0).reduce((tops, r) => (tops.some((top) => Math.abs(top - r.top) < r.height / 2) ? tops : [...tops, r.top]), []);
  };
  const boxOf = (node) => { range.selectNodeContents(node); return range.getBoundingClientRect(); };
  // A person sees the whole of a text that is cut with an ellipsis by its title or by a click.
  const clipped = (e, until) => { for (let at = e; at && at !== until; at = at.parentElement) if (['hidden', 'clip', 'auto', 'scroll'].includes(styleOf(at).overflowX)) return true; return false; };

  // ---- overflow
  const html = document.documentElement;
  if (html.scrollWidth > html.clientWidth + 1) say(`the page is ${html.scrollWidth} wide in a window of ${html.clientWidth}`);
  [root, ...all('*')].forEach((e) => {
    if (!['auto', 'scroll'].includes(styleOf(e).overflowX) || ['TEXTAREA', 'INPUT', 'PRE'].includes(e.tagName) || styleOf(e).whiteSpace === 'pre') return;
    if (e.scrollWidth > e.clientWidth + 1) say(`scrolls sideways (${e.scrollWidth} in ${e.clientWidth}): ${e.getAttribute('aria-label') || e.dataset.lakehouse || short(e.innerText)}`);
  });
  const cards = all('section[aria-label], [data-card], td, th');
  if (dialog) cards.push(dialog);
  cards.forEach((card) => {
    const box = card.getBoundingClientRect(); const name = card.getAttribute('aria-label') || short(card.innerText || '');
    texts.filter((node) => card.contains(node) && !clipped(node.parentElement, card)).forEach((node) => {
      const rect = boxOf(node);
      if (rect.right > box.right + 1 || rect.left < box.left - 1) say(`"${short(node.data)}" sticks out of "${name}" by ${Math.round(Math.max(rect.right - box.right, box.left - rect.left))}`);
    });
    all('button, input, textarea, select, svg, canvas, table', card).filter(visible).forEach((e) => {
      const rect = e.getBoundingClientRect();
      if (!clipped(e.parentElement, card) && (rect.right > box.right + 1 || rect.left < box.left - 1)) say(`${e.tagName.toLowerCase()} "${short(e.innerText || e.getAttribute('aria-label') || '')}" sticks out of "${name}"`);
    });
  });
  const window_ = { right: innerWidth, left: 0 };
  texts.forEach((node) => { const rect = boxOf(node); if (!clipped(node.parentElement, root) && (rect.right > window_.right + 1 || rect.left < -1)) say(`"${short(node.data)}" is out of the window`); });

  // ---- values on one line
  const VALUE = /(?:\d[\d,.]*\s?(?:B|kB|MB|GB|TB|PB|EB|ms|s|min|h|days|%)(?:\s(?:ago))?(?!\w))|\S+/g;
  texts.forEach((node) => {
    if (node.parentElement.closest('svg') || clippedLines(node.parentElement)) return;
    for (const found of node.data.matchAll(VALUE)) {
      // A location or a run id may be longer than its column.
      if (found[0].length > 40) continue;
      if (linesOf(node, found.index, found.index + found[0].length).length > 1 && !/[-/,]/.test(found[0].slice(1, -1))) say(`breaks within "${found[0]}"`);
      if (/^\d{4}-\d{2}-\d{2}$/.test(found[0]) && linesOf(node, found.index, found.index + found[0].length).length > 1) say(`breaks within the date ${found[0]}`);
    }
  });
  function clippedLines(e) { return styleOf(e).webkitLineClamp !== 'none'; }
  const rows = (e) => texts.filter((node) => e.contains(node)).flatMap((node) => linesOf(node, 0, node.length)).reduce((found, top) => (found.some((other) => Math.abs(top - other) < 10) ? found : [...found, top]), []).length;
  all('time, button, [role=tab], th, .chakra-badge').filter(visible).forEach((e) => { if (rows(e) > 1) say(`wraps: "${short(e.innerText)}"`); });
  all('td').filter(visible).forEach((cell) => {
    const text = cell.innerText.trim();
    if (text && text.length <= 24 && !text.includes('\n') && !cell.querySelector('wbr, [data-text=narrow]') && rows(cell) > 1) say(`the cell "${text}" wraps`);
  });

  // ---- empty cards
  all('section[aria-label]').filter(visible).forEach((card) => {
    if (all('svg, canvas, img, input, [role=status]', card).some(visible)) return;
    const own = texts.filter((node) => card.contains(node) && !node.parentElement.closest('h1, h2, h3, h4, button')).map((node) => node.data.trim()).join(' ');
    if (!/[a-z]/i.test(own)) say(`the card "${card.getAttribute('aria-label')}" is empty`);
  });
  all('table').filter(visible).forEach((table) => {
    if (!table.querySelector('tbody tr') && !/[a-z]{3}/i.test((table.parentElement.innerText || '').replace(table.innerText, ''))) say(`the table "${table.getAttribute('aria-label')}" is empty`);
  });

  // ---- contrast
  const pen = Object.assign(document.createElement('canvas'), { width: 1, height: 1 }).getContext('2d', { willReadFrequently: true });
  const colours = new Map();
  const colour = (text) => {
    if (!colours.has(text)) {
      pen.clearRect(0, 0, 1, 1); pen.fillStyle = '#000'; pen.fillStyle = text; pen.fillRect(0, 0, 1, 1);
      const [r, g, b, a] = pen.getImageData(0, 0, 1, 1).data;
      colours.set(text, [r, g, b, a / 255]);
    }
    return colours.get(text);
  };
  const over = ([r, g, b, a], [x, y, z]) => [r * a + x * (1 - a), g * a + y * (1 - a), b * a + z * (1 - a), 1];
  const faded = ([r, g, b, a], opacity) => [r, g, b, a * opacity];
  const light = ([r, g, b]) => { const [x, y, z] = [r, g, b].map((v) => (v / 255 <= 0.04045 ? v / 255 / 12.92 : ((v / 255 + 0.055) / 1.055) ** 2.4)); return 0.2126 * x + 0.7152 * y + 0.0722 * z; };
  const contrast = (one, other) => { const [a, b] = [light(one), light(other)]; return (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05); };
  const opacity = (e) => { let found = 1; for (let at = e; at; at = at.parentElement) found *= Number(styleOf(at).opacity); return found; };
  const paper = (e) => {
    const layers = [];
    for (let at = e; at; at = at.parentElement) {
      const found = colour(styleOf(at).backgroundColor);
      if (found[3] > 0) layers.push(found);
      if (found[3] === 1) break;
    }
    return layers.reverse().reduce((below, layer) => over(layer, below), [255, 255, 255, 1]);
  };
  // What is drawn below a point of a drawing: the shapes before the element.
  const canvasBelow = (e, x, y) => {
    const svg = e.ownerSVGElement; let found = paper(svg);
    for (const shape of svg.querySelectorAll('rect, path')) {
      if (shape === e || !(shape.compareDocumentPosition(e) & Node.DOCUMENT_POSITION_FOLLOWING)) continue;
      const fill = styleOf(shape).fill; const box = shape.getBoundingClientRect();
      if (fill === 'none' || x < box.left || x > box.right || y < box.top || y > box.bottom) continue;
      found = over(faded(colour(fill), opacity(shape) * Number(styleOf(shape).fillOpacity)), found);
    }
    return found;
  };
  texts.forEach((node) => {
    const e = node.parentElement; const style = styleOf(e);
    if (e.closest(':disabled, [data-disabled], [aria-disabled=true]')) return;
    const inSvg = Boolean(e.ownerSVGElement); const rect = boxOf(node);
    const below = inSvg ? canvasBelow(e, rect.left + rect.width / 2, rect.top + rect.height / 2) : paper(e);
    const ink = over(faded(colour(inSvg ? style.fill : style.color), opacity(e)), below);
    const found = contrast(ink, below);
    if (found < 4.5) say(`contrast ${found.toFixed(1)} of "${short(node.data)}"`);
    if (inSvg) {
      const height = parseFloat(style.fontSize) * e.getScreenCTM().a;
      if (height < 9.5 || height > 15) say(`letters of ${height.toFixed(0)} px in a chart: "${short(node.data)}"`);
    }
  });
  all('input[placeholder], textarea[placeholder]').filter(visible).forEach((e) => {
    const found = contrast(over(colour(getComputedStyle(e, '::placeholder').color), paper(e)), paper(e));
    if (found < 4.5 && !e.value) say(`contrast ${found.toFixed(1)} of the placeholder "${e.placeholder}"`);
  });
  all('svg[role=img]').filter(visible).forEach((svg) => {
    all('line, polyline, rect, path, circle', svg).forEach((shape) => {
      const style = styleOf(shape); const paint = style.fill !== 'none' && shape.tagName !== 'line' ? style.fill : style.stroke;
      const rect = shape.getBoundingClientRect();
      if (paint === 'none' || shape.dataset.quiet !== undefined || !(rect.width + rect.height)) return;
      const below = paper(svg);
      const found = contrast(over(faded(colour(paint), opacity(shape)), below), below);
      if (found < 3) say(`contrast ${found.toFixed(1)} of a ${shape.tagName} in "${short(svg.getAttribute('aria-label') || '')}"`);
    });
    const labels = all('text', svg).map((e) => [e, e.getBoundingClientRect()]);
    const frame = svg.getBoundingClientRect();
    labels.forEach(([e, one], i) => {
      if (one.right > frame.right + 1 || one.left < frame.left - 1 || one.bottom > frame.bottom + 1 || one.top < frame.top - 1) say(`the letters "${e.textContent}" are cut off in a chart`);
      labels.slice(i + 1).forEach(([other, two]) => {
        const across = Math.min(one.right, two.right) - Math.max(one.left, two.left); const down = Math.min(one.bottom, two.bottom) - Math.max(one.top, two.top);
        if (across > 1 && down > 3) say(`the letters "${e.textContent}" and "${other.textContent}" overlap`);
      });
    });
  });
  return [...faults];
})()
