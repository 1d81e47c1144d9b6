// Dialog of an action: parameters, its dry run, the confirmation, and a link to what was started.
import { h, UI, useState, useEffect, call, Fragment } from './core.js';
import { Go, Notice, Failure, State } from './ui.js';
import { DagNotices, RequestText } from './dag-states.js';

const { Box, Button, Dialog, Portal, Text, Input, Textarea, Spinner } = UI;

export const LABELS = {
  request_service: 'Request', pause_service: 'Pause', resume_service: 'Resume', edit_policy: 'Edit policy', rollback: 'Roll back',
  rollback_failed: 'Roll back failed writes', savepoint: 'Savepoint', restore: 'Restore', publish: 'Publish', withdraw: 'Withdraw',
  stop_run: 'Stop', upgrade: 'Upgrade', downgrade: 'Downgrade', remove_policy: 'Remove policy', silence: 'Silence', end_silence: 'End silence',
};

// They delete data, end the work of others, or make engines fail; the others can be undone with a click.
const HARMFUL = ['rollback', 'rollback_failed', 'restore', 'withdraw', 'stop_run', 'upgrade', 'downgrade'];

// fields: [{name, label, value, kind}] are asked before the dry run; fixed parameters are given. `path` is the place of an
// action that is about no table.
export function ActionButton({ table, path, action, fixed = {}, fields = [], label, disabled, onDone, ...more }) {
  const [open, setOpen] = useState(false);
  return h(Fragment, null,
    h(Button, { size: 'xs', variant: 'outline', disabled, title: disabled ? 'You do not have the permission for this action.' : undefined,
      onClick: () => setOpen(true), ...more }, label || LABELS[action]),
    open ? h(ActionDialog, { table, path, action, fixed, fields, label, close: (done) => { setOpen(false); if (done && onDone) onDone(); } }) : null);
}

// Stands in the place of the button Roll back.
export const Kept = () => h(Text, { fontSize: 'xs', color: 'fg.muted' }, 'A savepoint keeps this commit, so it cannot be rolled back. `lakehouse savepoint delete` ends that.');

function ActionDialog({ table, path: place, action, fixed, fields, label, close }) {
  const [values, setValues] = useState(Object.fromEntries(fields.map((f) => [f.name, f.value ?? ''])));
  const [step, setStep] = useState(fields.length ? 'ask' : 'preview');
  const [shown, setShown] = useState(null); const [done, setDone] = useState(null); const [error, setError] = useState(null);
  const [busy, setBusy] = useState(false);
  const parameters = () => ({ ...fixed, ...parse(fields, values) });
  const path = place || `tables/${encodeURIComponent(table)}/actions`;
  const send = (to, then) => {
    setBusy(true); setError(null);
    let given;
    try { given = { ...parameters(), ...(to ? {} : seen(action, shown)) }; } catch (problem) { setBusy(false); setError(problem); return; }
    call(path + to, { method: 'POST', body: { action, parameters: given } })
      .then(then, setError).finally(() => setBusy(false));
  };
  const preview = () => send('/preview', (found) => { setShown(found); setStep('preview'); });
  useEffect(() => { if (!fields.length) preview(); }, []);
  const title = `${label || LABELS[action]}${fixed.service ? `${action.endsWith('_policy') ? ' of' : ''} ${fixed.service}` : ''}${table ? `: ${table}` : ''}`;
  return h(Dialog.Root, { open: true, size: 'lg', onOpenChange: (e) => { if (!e.open) close(done !== null); } },
    h(Portal, null, h(Dialog.Backdrop), h(Dialog.Positioner, null, h(Dialog.Content, null,
      h(Dialog.Header, null, h(Dialog.Title, { overflowWrap: 'anywhere' }, title)),
      h(Dialog.Body, null,
        error ? h(Failure, { error }) : null,
        step === 'ask' ? fields.map((f) => h(Field, { key: f.name, field: f, value: values[f.name], set: (v) => setValues({ ...values, [f.name]: v }) })) : null,
        busy && step !== 'done' ? h(Box, { role: 'status' }, h(Spinner, { size: 'sm' }), ' Working ...') : null,
        step === 'preview' && shown ? h(Box, null, h(Text, { fontWeight: 'semibold', mb: 2 }, 'What would happen'),
          h('ul', { style: { paddingLeft: '1.2rem', listStyle: 'disc' } }, shown.effects.map((text, i) => h('li', { key: i, style: { overflowWrap: 'anywhere' } }, text)))) : null,
        step === 'done' ? h(Result, { done }) : null,
        step !== 'ask' ? h(DagNotices, dagsOf(action, fixed)) : null),
      h(Dialog.Footer, null,
        h(Button, { variant: 'outline', onClick: () => close(done !== null) }, step === 'done' ? 'Close' : 'Cancel'),
        step === 'ask' ? h(Button, { disabled: busy, onClick: preview }, 'Show what would happen') : null,
        step === 'preview' && shown ? h(Button, { colorPalette: HARMFUL.includes(action) ? 'red' : 'blue', disabled: busy || shown.nothing_to_do,
          title: shown.nothing_to_do ? 'The action would change nothing, so there is nothing to confirm.' : undefined, onClick: () => send('', (found) => { setDone(found.action); setStep('done'); }) }, 'Confirm') : null)))));
}

// The DAGs that do an action.
const BY_DAG = ['rollback', 'rollback_failed', 'savepoint', 'restore', 'publish', 'withdraw', 'upgrade', 'downgrade'];
function dagsOf(action, fixed) {
  if (action === 'request_service') return { services: [fixed.service] };
  return { dags: BY_DAG.includes(action) ? ['lakehouse.actions'] : [] };
}

function Result({ done }) {
  return h(Box, null, h(Text, { mb: 2 }, 'Recorded as action ', h('strong', null, String(done.id)), ' of ', done.author, '. ', h(State, { state: done.state })),
    done.dag_run ? h(Go, { to: `/dags/${done.dag}/runs/${done.dag_run}` }, 'Open the DAG run') : null,
    done.request ? h(RequestText, { request: done.request, service: done.parameters.service }) : null,
    done.result && done.result.error ? h(Notice, { kind: 'error', title: 'It failed' }, done.result.error) : null);
}

function Field({ field, value, set }) {
  const Kind = field.kind === 'lines' ? Textarea : Input;
  return h(Box, { mb: 3 }, h('label', null, h(Text, { fontSize: 'sm', fontWeight: 'medium' }, field.label),
    h(Kind, { value, 'aria-label': field.label, placeholder: field.hint, onChange: (e) => set(e.target.value) })),
  field.help ? h(Text, { fontSize: 'xs', color: 'fg.muted' }, field.help) : null);
}

// A confirmed change of the version is refused if the table has another version than in the plan that was shown.
const seen = (action, shown) => (['upgrade', 'downgrade'].includes(action) && shown && shown.facts && shown.facts.source ? { from: String(shown.facts.source) } : {});

function parse(fields, values) {
  const found = {};
  fields.forEach(({ name, kind, label }) => {
    const text = String(values[name] ?? '').trim();
    if (!text) return;
    const lines = text.split('\n').map((line) => line.trim()).filter(Boolean);
    if (kind === 'lines' && name === 'settings') {
      found[name] = Object.fromEntries(lines.map((line) => {
        const at = line.indexOf('=');
        if (at < 1) throw new Error(`${label}: ${line} is not name=value`);
        return [line.slice(0, at).trim(), line.slice(at + 1).trim()];
      }));
    } else found[name] = kind === 'lines' ? lines : text;
  });
  return found;
}
