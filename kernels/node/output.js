'use strict';
// Writes output synchronously, with system calls. Node's own streams have a queue, and an interrupt during a write would
// block them for ever.

// The user may replace it.
const { writeSync } = require('fs');

/** Writes all of it, even if the descriptor is non-blocking. */
function writeAll(fd, bytes) {
  let rest = bytes;
  while (rest.length > 0) {
    try {
      rest = rest.subarray(writeSync(fd, rest));
    } catch (error) {
      if (error.code !== 'EAGAIN') throw error;
      // The pipe is full; try again.
      Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, 1);
    }
  }
}

/** Makes a stream of the process write at once. */
function writeAtOnce(stream, fd) {
  stream.write = (chunk, encoding, done) => {
    if (typeof encoding === 'function') [encoding, done] = [undefined, encoding];
    writeAll(fd, typeof chunk === 'string' ? Buffer.from(chunk, encoding) : chunk);
    if (done) process.nextTick(done);
    return true;
  };
}

module.exports = { writeAll, writeAtOnce };
