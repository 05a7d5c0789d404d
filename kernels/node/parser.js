'use strict';
// A parser of JavaScript: the one that Node carries for its own prompt. It is not for everybody's use, which is why
// the kernel is started with --expose-internals; should it be elsewhere one day, an installed one does.

function found() {
  const places = [
    ['internal/deps/acorn/acorn/dist/acorn', 'internal/deps/acorn/acorn-walk/dist/walk'],
    ['acorn', 'acorn-walk'],
  ];
  for (const [acorn, walk] of places) {
    try {
      return { acorn: require(acorn), walk: require(walk) };
    } catch {
      // The next one, then.
    }
  }
  throw new Error(`Node ${process.version} has no parser that this kernel knows; install acorn and acorn-walk`);
}

module.exports = found();
