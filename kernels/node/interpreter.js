'use strict';
// Runs cells, one after another, in the global scope of this process.

const { AsyncLocalStorage } = require('async_hooks');
const nodeModule = require('module');
const path = require('path');
const util = require('util');
const vm = require('vm');

const { compile } = require('./cells');
const types = require('./types');

// The user may replace them.
const { parse, stringify } = JSON;

// The directory of a session's packages, and of relative names.
const HOME = '/session';

// Larger results are sent only as text, which has its own limit.
const MAX_JSON = 1 << 20;
const MAX_TEXT = 1 << 20;
const MAX_DEPTH = 64;

// Errors that show only their stack, because they did not happen in user code.
const whole = new WeakSet();
// The position after the last line of each cell, by name: code after it is ours.
const ends = new Map();
const MAX_ENDS = 1000;

// The cell that asynchronous code belongs to: timers, promises and connections remember the cell that created them. The
// methods are saved now, as the user may replace them.
const contexts = new AsyncLocalStorage();
const inContext = Function.prototype.call.bind(AsyncLocalStorage.prototype.run, contexts);
const currentCell = Function.prototype.call.bind(AsyncLocalStorage.prototype.getStore, contexts);

/** `process.exit()`: the cell that calls it ends, the kernel does not, nor does a later cell. */
class Exit extends Error {
  // Read-only for users.
  #cell = currentCell();

  constructor(code) {
    super(`process.exit(${code})`);
    this.code = code;
  }

  static isOf(error, cell) {
    return typeof error === 'object' && error !== null && #cell in error && error.#cell === cell;
  }
}

class Interrupted extends Error {
  constructor() {
    super('the cell was interrupted');
    this.name = 'Interrupted';
  }
}

class Interpreter {
  constructor() {
    const require = nodeModule.createRequire(path.join(HOME, 'cell.js'));
    this._require = require;
    this._declared = new Set();
    define('require', require);
    define('module', { exports: {} });
    define('exports', globalThis.module.exports);
    define('__dirname', HOME);
    define('__filename', path.join(HOME, 'cell.js'));
    process.exit = (code) => {
      throw new Exit(exitCode(code ?? process.exitCode));
    };
    this.expectGlobals();
  }

  /** What is global by now is not the user's. */
  expectGlobals() {
    this._given = new Set(Object.getOwnPropertyNames(globalThis));
  }

  /** The user's own variables. */
  names() {
    const own = Object.keys(globalThis).filter((name) => !this._given.has(name));
    return new Set([...own, ...this._declared]);
  }

  /**
   * Begins a cell; a promise of its value, if it ends with an expression. What comes before its first `await` has
   * happened when this returns. Not to be called from a microtask: an interrupt there takes all others with it.
   */
  run(code, { number, echo, variant, cell: context }) {
    const filename = `cell ${number}`;
    let cell;
    try {
      if (variant === 'typescript') code = types.strip(code, (name) => this._load(name));
      cell = compile(code, echo);
    } catch (error) {
      throw syntaxError(error, code, filename);
    }
    ends.set(filename, code.split('\n').length + 1);
    ends.delete(`cell ${number - MAX_ENDS}`);
    const script = new vm.Script(cell.source, {
      filename,
      columnOffset: cell.columnOffset,
      importModuleDynamically:
        vm.constants?.USE_MAIN_CONTEXT_DEFAULT_LOADER ?? ((specifier) => import(this._resolve(specifier))),
    });
    for (const name of cell.names) {
      declare(name);
      this._declared.add(name);
    }
    try {
      // A user's SIGINT handlers run after this returns.
      return inContext(context, () => script.runInThisContext({ breakOnSigint: true }));
    } catch (error) {
      if (error?.code === 'ERR_SCRIPT_EXECUTION_INTERRUPTED') throw new Interrupted();
      throw error;
    }
  }

  /** A package of the session's, or of the image's. */
  _load(name) {
    const places = [HOME, '/usr/local/lib', '/usr/lib', path.dirname(path.dirname(process.execPath)) + '/lib'];
    return this._require(this._require.resolve(name, { paths: places }));
  }

  _resolve(specifier) {
    return /^(\.{0,2}\/|file:|node:|data:)/.test(specifier) ? specifier : this._require.resolve(specifier);
  }
}

function define(name, value) {
  Object.defineProperty(globalThis, name, { value, writable: true, configurable: true, enumerable: false });
}

/** Creates a writable global variable, also instead of a read-only one of Node. */
function declare(name) {
  const found = Object.getOwnPropertyDescriptor(globalThis, name);
  if (found && (found.writable || !found.configurable)) return;
  Object.defineProperty(globalThis, name, { value: undefined, writable: true, configurable: true, enumerable: true });
}

function exitCode(code) {
  const number = Number(code ?? 0);
  return Number.isInteger(number) ? number & 255 : 1;
}

/** What the parser says, with the line it says it of. */
function syntaxError(error, code, filename) {
  whole.add(error);
  if (!error.loc) {
    error.stack = `${error.name}: ${error.message}`;
    return error;
  }
  const { line, column } = error.loc;
  const message = error.message.replace(/ \(\d+:\d+\)$/, '');
  const formatted = new SyntaxError(message);
  const text = code.split('\n')[line - 1] ?? '';
  whole.add(formatted);
  formatted.stack = `${filename}:${line}\n${text}\n${' '.repeat(column)}^\n\nSyntaxError: ${message}`;
  return formatted;
}

/** A value in every form it can be shown in. */
function describe(value) {
  let text;
  try {
    text = util.inspect(value, { maxStringLength: MAX_TEXT });
  } catch (error) {
    text = `[it cannot be shown: ${messageOf(error)}]`;
  }
  const data = { 'text/plain': text.length > MAX_TEXT ? `${text.slice(0, MAX_TEXT)}…` : text };
  if (isPlain(value, 0)) {
    const json = stringify(value);
    if (json !== undefined && json.length <= MAX_JSON) data['application/json'] = parse(json);
  }
  return { data };
}

/** Whether JSON would say all of it. */
function isPlain(value, depth) {
  switch (typeof value) {
    case 'string':
      return value.length <= MAX_JSON;
    case 'boolean':
      return true;
    case 'number':
      return Number.isFinite(value);
    case 'object':
      break;
    default:
      return false;
  }
  if (value === null) return true;
  if (depth > MAX_DEPTH || util.types.isProxy(value)) return false;
  const prototype = Object.getPrototypeOf(value);
  if (Array.isArray(value)) {
    if (prototype !== Array.prototype || value.length > MAX_JSON) return false;
  } else if (prototype !== Object.prototype && prototype !== null) {
    return false;
  }
  const descriptors = Object.getOwnPropertyDescriptors(value);
  return Reflect.ownKeys(descriptors).every((key) => {
    const { enumerable, value: inner } = descriptors[key];
    if (!enumerable) return key === 'length';
    return typeof key === 'string' && 'value' in descriptors[key] && isPlain(inner, depth + 1);
  });
}

/** An error in the format of the guest, without our own frames. */
function report(error) {
  const isError = util.types.isNativeError(error) || error instanceof Error;
  let shown;
  try {
    shown = isError ? stackOf(error) : `Uncaught ${util.inspect(error)}`;
  } catch (failure) {
    shown = `[the error cannot be shown: ${messageOf(failure)}]`;
  }
  return {
    name: isError ? String(nameOf(error)) : 'Error',
    value: isError ? messageOf(error) : textOf(error),
    traceback: shown,
  };
}

function stackOf(error) {
  if (error instanceof Interrupted) return `${error.name}: ${error.message}`;
  if (whole.has(error)) return error.stack;
  // Its causes and its own properties are part of it.
  const shown = util.inspect(error, { maxStringLength: MAX_TEXT }).slice(0, MAX_TEXT);
  // Subtract the columns of our prefix on the first line.
  const lines = shown.replace(/(cell \d+:1):-\d+/g, '$1:1').split('\n');
  // The stack below our first frame is ours.
  let ours = false;
  const isTheirs = (line) => {
    if (!/^\s+at /.test(line)) ours = false;
    else ours ||= isOurs(line);
    return !ours;
  };
  return lines.filter(isTheirs).join('\n');
}

function isOurs(line) {
  const [, cell, number] = /(cell \d+):(\d+):\d+\)?( \{)?$/.exec(line) ?? [];
  if (cell) return ends.get(cell) === Number(number);
  return line.includes(__dirname) || /\((node:vm|node:internal\/)|at node:internal\//.test(line);
}

function nameOf(error) {
  try {
    return error.name || 'Error';
  } catch {
    return 'Error';
  }
}

function messageOf(error) {
  try {
    return String(error?.message ?? error);
  } catch {
    return '?';
  }
}

function textOf(value) {
  try {
    return typeof value === 'string' ? value : util.inspect(value);
  } catch {
    return '?';
  }
}

module.exports = { Interpreter, Exit, Interrupted, currentCell, describe, report };
