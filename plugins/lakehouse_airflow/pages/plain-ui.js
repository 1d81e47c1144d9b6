// The components of Chakra UI that the pages use, as plain HTML elements. Airflow 3.1 gives React to plugins, but no Chakra UI.
// Its page declares Chakra's colours as CSS variables, so colours and the dark mode are those of Airflow.
const { createElement: h, cloneElement, createContext, useContext, useEffect, useRef, Children } = globalThis.React;

const SIZES = { xs: '0.75rem', sm: '0.875rem', md: '1rem', lg: '1.125rem', xl: '1.25rem', '2xl': '1.5rem' };
const RADII = { sm: '0.25rem', md: '0.375rem', lg: '0.5rem', full: '9999px' };
const space = (value) => (typeof value === 'number' ? `${value * 0.25}rem` : /^-?\d+(\.\d+)?$/.test(value) ? `${Number(value) * 0.25}rem` : value);
const colour = (value) => (typeof value === 'string' && /^[a-z]+(\.[a-zA-Z0-9]+)*$/.test(value) && !['transparent', 'inherit', 'none'].includes(value)
  ? `var(--chakra-colors-${value.replaceAll('.', '-')})` : value);
const same = (value) => value;
const sides = (name, ...ends) => ends.map((end) => `${name}${end}`);
// Property of a component -> CSS properties, and the conversion of its value.
const STYLES = {
  m: [['margin'], space], p: [['padding'], space], gap: [['gap'], space], bg: [['background'], colour], background: [['background'], colour], color: [['color'], colour],
  w: [['width'], space], h: [['height'], space], width: [['width'], space], height: [['height'], space],
  minW: [['minWidth'], space], maxW: [['maxWidth'], space], minH: [['minHeight'], space], maxH: [['maxHeight'], space],
  minWidth: [['minWidth'], space], maxWidth: [['maxWidth'], space], maxHeight: [['maxHeight'], space],
  fontSize: [['fontSize'], (value) => SIZES[value] || value], fontWeight: [['fontWeight'], (value) => ({ medium: 500, semibold: 600 }[value] || value)],
  fontFamily: [['fontFamily'], (value) => (value === 'mono' ? 'monospace' : value)], borderRadius: [['borderRadius'], (value) => RADII[value] || space(value)], rounded: [['borderRadius'], (value) => RADII[value] || value],
  borderColor: [['borderColor'], colour], align: [['alignItems'], same], justify: [['justifyContent'], same], wrap: [['flexWrap'], same], direction: [['flexDirection'], same],
};
['Top', 'Bottom', 'Left', 'Right'].forEach((end) => {
  STYLES[`m${end[0].toLowerCase()}`] = [[`margin${end}`], space];
  STYLES[`p${end[0].toLowerCase()}`] = [[`padding${end}`], space];
  STYLES[`border${end}Width`] = [[`border${end}Width`], (value) => (value === 0 ? 0 : value)];
});
Object.assign(STYLES, { mx: [sides('margin', 'Left', 'Right'), space], my: [sides('margin', 'Top', 'Bottom'), space], px: [sides('padding', 'Left', 'Right'), space], py: [sides('padding', 'Top', 'Bottom'), space] });
const PLAIN = ['display', 'flex', 'flexWrap', 'flexDirection', 'flexShrink', 'flexGrow', 'alignItems', 'alignSelf', 'justifyContent', 'overflow', 'overflowX', 'overflowY', 'overflowWrap', 'whiteSpace', 'wordBreak', 'textAlign',
  'textDecoration', 'textTransform', 'verticalAlign', 'position', 'top', 'left', 'right', 'bottom', 'zIndex', 'cursor', 'opacity', 'lineHeight', 'borderWidth', 'borderStyle', 'listStyleType', 'textOverflow', 'border', 'fontStyle', 'gridTemplateColumns', 'visibility', 'fontVariantNumeric', 'pointerEvents', 'outline'];
PLAIN.forEach((name) => { STYLES[name] = STYLES[name] || [[name], same]; });
// Properties of Chakra without a meaning for an element.
const DROPPED = ['as', 'asChild', 'variant', 'size', 'colorPalette', 'columns', 'lineClamp', 'truncate', 'striped', 'interactive', 'stickyHeader', 'loading', 'open', 'onOpenChange', 'css', 'hideBelow', 'hideFrom', 'noOfLines', 'isNumeric'];

// A responsive value is an object of widths; the widest one is used.
const widest = (value) => (value && typeof value === 'object' && !Array.isArray(value) ? Object.values(value).at(-1) : Array.isArray(value) ? value.at(-1) : value);

function split(props, own) {
  const style = { ...own }; const rest = {};
  Object.entries(props).forEach(([name, given]) => {
    if (name === 'style' || name === 'children') return;
    if (STYLES[name]) {
      const [targets, convert] = STYLES[name];
      targets.forEach((target) => { style[target] = convert(widest(given)); });
      if (/^border.*Width$/.test(targets[0])) style.borderStyle = style.borderStyle || 'solid';
    } else if (!name.startsWith('_') && !DROPPED.includes(name)) rest[name] = given;
  });
  return { ...rest, style: { ...style, ...props.style } };
}

const element = (tag, own = {}) => function Plain(props) {
  const rest = split(props, typeof own === 'function' ? own(props) : own);
  if (props.asChild) {
    const child = Children.only(props.children);
    return cloneElement(child, { ...rest, ...child.props, style: { ...rest.style, ...child.props.style } });
  }
  return h(props.as || tag, rest, props.children);
};

const LINE = '1px solid var(--chakra-colors-border, #d4d4d8)';
const BUTTON = { xs: ['0.15rem 0.5rem', '0.75rem'], sm: ['0.3rem 0.75rem', '0.875rem'] };
const button = ({ size, variant, disabled }) => {
  const [padding, fontSize] = BUTTON[size] || ['0.45rem 1rem', '0.875rem'];
  const isPlain = variant === 'plain' || variant === 'ghost';
  const isSolid = !variant || variant === 'solid';
  return { padding, fontSize, borderRadius: RADII.md, cursor: disabled ? 'not-allowed' : 'pointer', opacity: disabled ? 0.5 : 1, border: isPlain || isSolid ? '1px solid transparent' : LINE,
    background: isSolid ? 'var(--chakra-colors-fg, #18181b)' : 'transparent', color: isSolid ? 'var(--chakra-colors-bg, #fff)' : 'inherit' };
};
const badge = ({ colorPalette = 'gray' }) => ({ display: 'inline-flex', padding: '0 0.375rem', borderRadius: RADII.sm, fontSize: '0.75rem', fontWeight: 500, whiteSpace: 'nowrap',
  background: `var(--chakra-colors-${colorPalette}-subtle, #f4f4f5)`, color: `var(--chakra-colors-${colorPalette}-fg, #27272a)` });
const FIELD = { border: LINE, borderRadius: RADII.md, padding: '0.3rem 0.5rem', background: 'transparent', color: 'inherit', fontSize: '0.875rem' };
const CELL = ({ size }) => ({ padding: size === 'sm' ? '0.25rem 0.5rem' : '0.4rem 0.6rem', borderBottom: LINE, textAlign: 'start', fontSize: '0.875rem' });

const Closing = createContext(() => {});
function DialogRoot({ onOpenChange, children }) {
  const close = () => onOpenChange?.({ open: false });
  useEffect(() => {
    const leave = (event) => { if (event.key === 'Escape') close(); };
    globalThis.addEventListener('keydown', leave);
    return () => globalThis.removeEventListener('keydown', leave);
  });
  return h(Closing.Provider, { value: close }, children);
}
function DialogContent(props) {
  const place = useRef(null);
  useEffect(() => { place.current?.focus(); }, []);
  const own = { background: 'var(--chakra-colors-bg, #fff)', borderRadius: RADII.lg, maxWidth: '48rem', width: '90vw', maxHeight: '85vh', overflow: 'auto', outline: 'none' };
  return h('div', { ref: place, role: 'dialog', 'aria-modal': true, tabIndex: -1, ...split(props, own) }, props.children);
}
const DialogBackdrop = () => h('div', { onClick: useContext(Closing), style: { position: 'fixed', inset: 0, background: 'rgba(0, 0, 0, 0.4)', zIndex: 1400 } });
const CENTER = { position: 'fixed', inset: 0, zIndex: 1401, display: 'flex', alignItems: 'center', justifyContent: 'center', pointerEvents: 'none' };
const DialogPositioner = ({ children }) => h('div', { style: CENTER }, h('div', { style: { pointerEvents: 'auto' } }, children));

const Part = createContext(0);
const ProgressRoot = (props) => h(Part.Provider, { value: props.value }, h('div', { role: 'progressbar', 'aria-valuenow': props.value, 'aria-valuemin': 0, 'aria-valuemax': 100, 'aria-label': props['aria-label'] }, props.children));
const ProgressRange = () => h('div', { style: { width: `${useContext(Part)}%`, height: '100%', background: 'var(--chakra-colors-fg, #18181b)' } });

const columns = (value) => (typeof widest(value) === 'number' ? `repeat(${widest(value)}, minmax(0, 1fr))` : undefined);
export const PlainUI = {
  Box: element('div'),
  Flex: element('div', { display: 'flex' }),
  HStack: element('div', { display: 'flex', alignItems: 'center', gap: '0.5rem' }),
  VStack: element('div', { display: 'flex', flexDirection: 'column', alignItems: 'center', gap: '0.5rem' }),
  SimpleGrid: element('div', (props) => ({ display: 'grid', gridTemplateColumns: columns(props.columns) || `repeat(auto-fit, minmax(${widest(props.minChildWidth) || '12rem'}, 1fr))` })),
  Text: element('p', { margin: 0 }),
  Heading: element('h2', ({ size }) => ({ margin: 0, fontWeight: 600, fontSize: SIZES[size] || '1.25rem' })),
  Code: element('code', { fontFamily: 'monospace', fontSize: '0.8125rem', padding: '0 0.25rem', borderRadius: RADII.sm, background: 'var(--chakra-colors-bg-muted, #f4f4f5)' }),
  Badge: element('span', badge),
  Button: element('button', button),
  Link: element('a', { textDecoration: 'underline' }),
  Input: element('input', FIELD),
  Textarea: element('textarea', FIELD),
  Skeleton: element('div', { background: 'var(--chakra-colors-bg-muted, #f4f4f5)', borderRadius: RADII.sm, minHeight: '1rem' }),
  Spinner: () => h('span', { role: 'status', 'aria-label': 'loading' }, '…'),
  Portal: ({ children }) => children,
  Table: {
    Root: element('table', { width: '100%', borderCollapse: 'collapse' }), Header: element('thead'), Body: element('tbody'), Row: element('tr'),
    ColumnHeader: element('th', (props) => ({ ...CELL(props), fontWeight: 600 })), Cell: element('td', CELL),
  },
  NativeSelect: { Root: element('span'), Field: element('select', FIELD), Indicator: () => null },
  Progress: { Root: ProgressRoot, Track: element('div', { height: '0.4rem', borderRadius: RADII.sm, overflow: 'hidden', background: 'var(--chakra-colors-bg-muted, #f4f4f5)' }), Range: ProgressRange },
  Dialog: {
    Root: DialogRoot, Backdrop: DialogBackdrop, Positioner: DialogPositioner, Content: DialogContent,
    Header: element('div', { padding: '1rem 1.25rem 0.5rem' }), Title: element('h2', { margin: 0, fontWeight: 600, fontSize: '1.125rem' }), Body: element('div', { padding: '0.5rem 1.25rem' }),
    Footer: element('div', { display: 'flex', justifyContent: 'flex-end', gap: '0.5rem', padding: '0.75rem 1.25rem 1rem' }),
  },
};
