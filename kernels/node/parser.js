'use strict';
// The JavaScript parser that Node contains for its REPL. It is internal, so the kernel is started with --expose-internals. If
// it is not available, an installed package is used.

function found() {
  const places = [
    ['internal/deps/acorn/acorn/dist/acorn', 'internal/deps/acorn/acorn-walk/dist/walk'],
    ['acorn', 'acorn-walk'],
  ];
  for (const [acorn, walk] of places) {
    try {
      return { acorn: require(acorn), walk: require(walk) };
    } catch {
      // Try the next one.
    }
  }
  throw new Error(`Node ${process.version} has no parser that this kernel knows; install acorn and acorn-walk`);
}

module.exports = found();
