'use strict';
// Removes types from TypeScript, with Node itself (22.13 and later) or an installed package. Types are not checked. The first
// two keep line numbers.

const nodeModule = require('module');

const WAYS = [
  ['node', () => nodeModule.stripTypeScriptTypes && ((code) => nodeModule.stripTypeScriptTypes(code, { mode: 'strip' }))],
  ['amaro', (load) => wrap(load('amaro'), (amaro, code) => amaro.transformSync(code, { mode: 'strip-only' }).code)],
  ['typescript', (load) => wrap(load('typescript'), byTypeScript)],
  ['esbuild', (load) => wrap(load('esbuild'), byEsbuild)],
];

const MISSING =
  `Node ${process.version} does not understand TypeScript by itself (22.13 and later do): install one of the ` +
  'packages amaro, typescript or esbuild, in the image or with `npm install` in /session';

const wrap = (module, strip) => (code) => strip(module, code);

function byTypeScript(ts, code) {
  const compilerOptions = {
    target: ts.ScriptTarget.ESNext,
    module: ts.ModuleKind.ESNext,
    // Keep unused imports: the next cell may use them.
    verbatimModuleSyntax: true,
  };
  const { outputText, diagnostics } = ts.transpileModule(code, { compilerOptions, reportDiagnostics: true });
  const wrong = (diagnostics || []).filter((it) => it.category === ts.DiagnosticCategory.Error);
  if (wrong.length > 0) throw new SyntaxError(ts.flattenDiagnosticMessageText(wrong[0].messageText, '\n'));
  return outputText;
}

function byEsbuild(esbuild, code) {
  const tsconfigRaw = { compilerOptions: { verbatimModuleSyntax: true } };
  return esbuild.transformSync(code, { loader: 'ts', target: 'esnext', tsconfigRaw }).code;
}

/** The code without types; `load` finds a package, or throws. */
function strip(code, load) {
  let failure;
  for (const [name, prepare] of WAYS) {
    let way;
    try {
      way = prepare(load);
    } catch {
      continue;
    }
    if (!way) continue;
    try {
      return way(code);
    } catch (error) {
      // Tools that keep lines do not support enums and namespaces; try the next one.
      failure ||= new SyntaxError(`${error.message} (says ${name})`);
    }
  }
  throw failure || new Error(MISSING);
}

module.exports = { strip };
