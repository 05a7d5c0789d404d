'use strict';
// Describes the variables without running user code: no getters, no proxy traps, no custom inspectors.

const util = require('util');

const MAX_VARIABLES = 500;
const MAX_PREVIEW = 200;
const MAX_TYPE = 80;

const LOOK = {
  depth: 1,
  customInspect: false,
  getters: false,
  showProxy: true,
  maxArrayLength: 20,
  maxStringLength: MAX_PREVIEW,
  breakLength: Infinity,
  compact: true,
};

/** Variables by the names in `names`, in the format of the guest. */
function snapshot(names) {
  const sorted = [...names].sort();
  const variables = [];
  for (const name of sorted.slice(0, MAX_VARIABLES)) {
    const found = Object.getOwnPropertyDescriptor(globalThis, name);
    if (found) variables.push('value' in found ? variable(name, found.value) : accessor(name));
  }
  return { variables, imports: [], cwd: cwd(), truncated: Math.max(0, sorted.length - MAX_VARIABLES) };
}

function variable(name, value) {
  const described = { name, type: typeOf(value), preview: preview(value) };
  if (typeof value === 'string') described.size = Buffer.byteLength(value);
  else if (util.types.isProxy(value)) return described;
  else if (Array.isArray(value)) described.shape = [value.length];
  else if (ArrayBuffer.isView(value)) Object.assign(described, { size: value.byteLength, shape: [value.byteLength] });
  return described;
}

function accessor(name) {
  return { name, type: 'accessor', preview: '[Getter]' };
}

function typeOf(value) {
  if (value === null) return 'null';
  if (typeof value !== 'object' && typeof value !== 'function') return typeof value;
  if (util.types.isProxy(value)) return 'Proxy';
  if (typeof value === 'function') return /^class\b/.test(Function.prototype.toString.call(value)) ? 'class' : 'function';
  for (let object = value; object !== null; object = Object.getPrototypeOf(object)) {
    if (util.types.isProxy(object)) break;
    const constructor = Object.getOwnPropertyDescriptor(object, 'constructor');
    if (!constructor || typeof constructor.value !== 'function' || util.types.isProxy(constructor.value)) continue;
    const name = Object.getOwnPropertyDescriptor(constructor.value, 'name');
    if (name && typeof name.value === 'string' && name.value) return name.value.slice(0, MAX_TYPE);
  }
  return 'object';
}

function preview(value) {
  try {
    const text = util.inspect(value, LOOK);
    return text.length > MAX_PREVIEW ? `${text.slice(0, MAX_PREVIEW)}…` : text;
  } catch {
    return '?';
  }
}

function cwd() {
  try {
    return process.cwd();
  } catch {
    // User code has removed it.
    return '';
  }
}

module.exports = { snapshot };
