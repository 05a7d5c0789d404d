'use strict';
// Converts a cell to a program whose top-level declarations outlive it.
//
// Later cells must see these names and may declare them again. So `let`, `const`, `class` and `import` become assignments to
// properties of the global object, which are created first. The other code is not moved, so that line numbers in errors
// are those of the user. The program is an async function, so that `await` is allowed; code before the first `await` runs
// synchronously, and can be interrupted.

const { acorn, walk } = require('./parser');

const BEGIN = '(async () => {';

/**
 * What a cell is made of: its source, the names that it declares, and how far its first line was pushed to the
 * right. Throws a SyntaxError if it is no program.
 */
function compile(code, echo) {
  const tree = parse(code);
  const names = new Set();
  const functions = [];
  const edits = [];
  const replace = (start, end, text) => edits.push({ start, end, text });

  if (code.startsWith('#!')) replace(0, 2, '//');
  for (const node of tree.body) {
    switch (node.type) {
      case 'FunctionDeclaration':
        names.add(node.id.name);
        functions.push(node.id.name);
        break;
      case 'ClassDeclaration':
        names.add(node.id.name);
        replace(node.start, node.start, `${node.id.name} = `);
        replace(node.end, node.end, ';');
        break;
      case 'ImportDeclaration':
        replace(node.start, node.end, importing(node, names));
        break;
      case 'ExportNamedDeclaration':
      case 'ExportDefaultDeclaration':
      case 'ExportAllDeclaration':
        throw new SyntaxError('a cell exports nothing; what it declares is there for the next one');
      case 'VariableDeclaration':
        if (node.kind !== 'var') assign(node, tree, code, names, replace);
        break;
    }
  }
  // `var` is hoisted to the cell, unless it is in a function.
  forEachVar(tree, (node, parent) => assign(node, parent, code, names, replace));

  let begin = BEGIN + functions.map((name) => `globalThis.${name} = ${name};`).join('');
  const last = tree.body[tree.body.length - 1];
  if (echo && last && last.type === 'ExpressionStatement') {
    // As early as possible, so that columns of the expression do not change.
    const before = tree.body[tree.body.length - 2];
    if (before) replace(before.end, before.end, ';return (');
    else begin += 'return (';
    replace(endOf(last, code), endOf(last, code), ')');
  }
  return { source: `${begin}${edited(code, edits)}\n})()`, names, columnOffset: -begin.length };
}

function parse(code) {
  const options = { ecmaVersion: 'latest', allowAwaitOutsideFunction: true, allowHashBang: true };
  try {
    return acorn.parse(code, { ...options, sourceType: 'script' });
  } catch (error) {
    // Parse as a module, which is stricter, only if the cell has `import`.
    if (!/^\s*(import|export)\b/m.test(code)) throw error;
    return acorn.parse(code, { ...options, sourceType: 'module' });
  }
}

/** Where a statement ends but for its semicolon. */
function endOf(statement, code) {
  return code[statement.end - 1] === ';' ? statement.end - 1 : statement.end;
}

/** `const { a, b } = f()` becomes `;({ a, b } = f());`. */
function assign(node, parent, code, names, replace) {
  for (const declared of node.declarations) namesIn(declared.id, names);
  const first = node.declarations[0];
  if ((parent.type === 'ForInStatement' || parent.type === 'ForOfStatement') && parent.left === node) {
    replace(node.start, first.start, '');
    return;
  }
  // The statement before may have no semicolon; but there must be none between `if (x)` and its statement.
  const among = ['Program', 'BlockStatement', 'SwitchCase'].includes(parent.type);
  // As wide as the keyword, so that columns do not change.
  replace(node.start, first.start, (among ? ';(' : '(').padEnd(node.kind.length + 1));
  for (const declared of node.declarations) {
    // `let a` sets undefined; `var a` keeps the value.
    if (!declared.init && node.kind !== 'var') replace(declared.end, declared.end, ' = undefined');
  }
  const end = node.declarations[node.declarations.length - 1].end;
  const isInit = parent.type === 'ForStatement' && parent.init === node;
  replace(end, end, isInit || code[node.end - 1] === ';' ? ')' : ');');
}

function namesIn(pattern, names) {
  switch (pattern.type) {
    case 'Identifier':
      names.add(pattern.name);
      break;
    case 'ObjectPattern':
      for (const property of pattern.properties) namesIn(property.value || property.argument, names);
      break;
    case 'ArrayPattern':
      for (const element of pattern.elements) if (element) namesIn(element, names);
      break;
    case 'AssignmentPattern':
      namesIn(pattern.left, names);
      break;
    case 'RestElement':
      namesIn(pattern.argument, names);
      break;
  }
}

/** Every `var` that is not inside a function or class, with the node it stands in. */
function forEachVar(tree, visit) {
  const outside = { ...walk.base, Function() {}, Class() {} };
  const visitors = {
    VariableDeclaration(node, ancestors) {
      if (node.kind === 'var') visit(node, ancestors[ancestors.length - 2]);
    },
  };
  walk.ancestor(tree, visitors, outside);
}

/** An `import` as a call; as in the language, a name that is not there is an error and not undefined. */
function importing(node, names) {
  const from = JSON.stringify(node.source.value);
  const attributes = (node.attributes || []).map(
    (it) => `${JSON.stringify(it.key.name || it.key.value)}: ${JSON.stringify(it.value.value)}`,
  );
  const options = attributes.length > 0 ? `, { with: { ${attributes.join(', ')} } }` : '';
  const module = `await import(${from}${options})`;
  if (node.specifiers.length === 0) return `${module};`;
  const assignments = node.specifiers.map((specifier) => {
    const local = specifier.local.name;
    names.add(local);
    if (specifier.type === 'ImportNamespaceSpecifier') return `${local} = module;`;
    const name = specifier.type === 'ImportDefaultSpecifier' ? 'default' : specifier.imported.name || specifier.imported.value;
    const missing = JSON.stringify(`The requested module '${node.source.value}' does not provide an export named '${name}'`);
    const quoted = JSON.stringify(name);
    return `if (!(${quoted} in module)) throw new SyntaxError(${missing}); ${local} = module[${quoted}];`;
  });
  return `;((module) => { ${assignments.join(' ')} })(${module});`;
}

function edited(code, edits) {
  // Sorted by position, and at the same position in the order of creation.
  edits.sort((a, b) => a.start - b.start || a.end - b.end);
  let text = '';
  let at = 0;
  for (const { start, end, text: inserted } of edits) {
    // Keeps line numbers.
    text += code.slice(at, start) + inserted + code.slice(start, end).replace(/[^\n]/g, '');
    at = end;
  }
  return text + code.slice(at);
}

module.exports = { compile };
