'use strict';
// The JavaScript kernel, in Node.
//
//     node --expose-internals main.js                    a kernel; descriptor 3 is the control socket
//     node --expose-internals main.js LANGUAGE CODE      runs code once and exits

const { Channel } = require('./wire');
const { writeAtOnce } = require('./output');
const { Interpreter, Exit, Interrupted, currentCell, describe, report } = require('./interpreter');
const state = require('./state');

// Saved, as the user may replace them.
const { setImmediate, Promise } = globalThis;
const { stringify } = JSON;
const encoded = ((from) => (value) => from(stringify(value)))(Buffer.from);

const PROTOCOL = 1;
const CONTROL = 3;
const EXIT_ERROR = 1;
const EXIT_INTERRUPTED = 130;

class Kernel {
  constructor() {
    this._interpreter = new Interpreter();
    writeAtOnce(process.stdout, 1);
    writeAtOnce(process.stderr, 2);
    this._count = 0;
    // The running cell: how to stop waiting for it, and its pending requests for input.
    this._running = null;
    // A cell that was interrupted before it began.
    this._interrupted = null;
    this._channel = new Channel(CONTROL, (head, body) => this._onFrame(head, body), () => process.reallyExit(0));
    globalThis.input = (prompt = '') => this._input(String(prompt));
    this._interpreter.expectGlobals();
    // The message `interrupt` names its cell. The signal only stops running code, see `run`: if that is a timer of an
    // earlier cell, it must not end a later cell.
    process.on('SIGINT', () => {});
    // Errors outside of the running cell are reported, and the kernel goes on.
    process.on('uncaughtException', (error) => this._failedAside('Uncaught', error));
    process.on('unhandledRejection', (error) => this._failedAside('Unhandled rejection', error));
  }

  serve() {
    this._channel.send({
      op: 'hello',
      protocol: PROTOCOL,
      language: 'javascript',
      language_version: process.version.slice(1),
      pid: process.pid,
    });
  }

  _onFrame(head, body) {
    switch (head.op) {
      case 'exec':
        this._exec(head, body);
        break;
      case 'input':
        if (this._running?.id === head.exec_id) this._running.lines.shift()?.(body);
        break;
      case 'interrupt':
        if (this._running?.id === head.exec_id) this._running.giveUp(new Interrupted());
        else this._interrupted = head.exec_id;
        break;
      case 'state':
        this._channel.send({ op: 'state' }, encoded(state.snapshot(this._interpreter.names())));
        break;
      case 'ping':
        this._channel.send({ op: 'pong', token: head.token });
        break;
      case 'shutdown':
        process.reallyExit(0);
    }
  }

  _exec(head, body) {
    this._count += 1;
    Object.assign(process.env, head.env);
    // A signal for the last cell may be pending; it is handled before the second of these.
    setImmediate(() => setImmediate(() => this._finish(head, this._begin(head, body.toString('utf8')))));
  }

  /** A promise of how a cell ends, by itself or because it is given up. */
  _begin(head, code) {
    return new Promise((end, giveUp) => {
      if (this._interrupted === head.exec_id) throw new Interrupted();
      const running = { id: head.exec_id, cell: Object.freeze({}), giveUp, lines: [], takesInput: head.stdin === true };
      this._running = running;
      const how = { number: this._count, echo: head.echo, variant: head.variant, cell: running.cell };
      let cell;
      try {
        cell = this._interpreter.run(code, how);
      } catch (error) {
        giveUp(error);
        return;
      }
      // The first one counts; the other is ignored.
      settle(cell, end, giveUp);
    });
  }

  async _finish(head, cell) {
    let status = 'ok';
    let exitCode = 0;
    try {
      const value = await cell;
      if (head.echo && value !== undefined) {
        this._channel.send({ op: 'display', kind: 'result' }, encoded(describe(value)));
      }
    } catch (error) {
      if (error instanceof Exit) {
        [status, exitCode] = ['exit', error.code];
      } else {
        const interrupted = error instanceof Interrupted;
        [status, exitCode] = interrupted ? ['interrupted', EXIT_INTERRUPTED] : ['error', EXIT_ERROR];
        this._channel.send({ op: 'error' }, encoded(report(error)));
      }
    }
    this._running = null;
    this._channel.send({
      op: 'done',
      exec_id: head.exec_id,
      status,
      exit_code: exitCode,
      execution_count: this._count,
    });
  }

  /** A line of input from the client; null at the end, or if the execution takes no input. */
  async _input(prompt) {
    const running = this._running;
    // Code of an earlier cell gets no input of this one.
    if (!running?.takesInput || currentCell() !== running.cell) return null;
    const line = await new Promise((resolve) => {
      running.lines.push(resolve);
      this._channel.send({ op: 'input' }, encoded({ prompt, password: false }));
    });
    return line.length === 0 ? null : line.toString('utf8').replace(/\r?\n$/, '');
  }

  _failedAside(what, error) {
    if (error instanceof Exit || error instanceof Interrupted) {
      // After the end of its cell it has no effect.
      const running = this._running;
      if (running && Exit.isOf(error, running.cell)) running.giveUp(error);
      return;
    }
    process.stderr.write(`${what}: ${report(error).traceback}\n`);
  }
}

/** As `then`, which the user may replace. */
async function settle(promise, end, fail) {
  try {
    end(await promise);
  } catch (error) {
    fail(error);
  }
}

async function runOnce(language, code) {
  const interpreter = new Interpreter();
  try {
    await interpreter.run(code, { number: 1, echo: false, variant: language === 'typescript' ? language : undefined });
  } catch (error) {
    if (error instanceof Exit) process.reallyExit(error.code);
    process.stderr.write(`${report(error).traceback}\n`);
    process.reallyExit(EXIT_ERROR);
  }
}

const [language, code] = process.argv.slice(2);
// Hides our own modules from user code.
process.argv.splice(1);
if (code === undefined) {
  try {
    new Kernel().serve();
  } catch (error) {
    process.stderr.write(`${error.stack}\n`);
    process.reallyExit(EXIT_ERROR);
  }
} else {
  runOnce(language, code);
}
