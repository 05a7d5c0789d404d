'use strict';
// Frames between the kernel and the guest, over the socket that is descriptor 3:
//
//     u32 LE head length | u32 LE body length | head: JSON object | body: raw bytes
//
// Frames are read as events and written synchronously: a message about a cell must be sent before anything else happens.

const net = require('net');

const { writeAll } = require('./output');

// The guest never sends more: a larger length means that the two sides disagree where a frame starts.
const MAX_HEAD_BYTES = 1 << 20;
const MAX_BODY_BYTES = 256 << 20;

const PREFIX = 8;

// The user may replace them.
const { parse, stringify } = JSON;
const { alloc, concat, from } = Buffer;

class Channel {
  /** Calls `onFrame(head, body)` for every frame, and `gone()` when the guest has closed the connection. */
  constructor(fd, onFrame, gone) {
    this._fd = fd;
    this._chunks = [];
    this._length = 0;
    // Chunks of an incomplete frame, which are joined once.
    this._wanted = PREFIX;
    this._onFrame = onFrame;
    const socket = new net.Socket({ fd, readable: true, writable: false });
    socket.on('data', (chunk) => this._push(chunk));
    socket.on('end', gone);
    socket.on('error', gone);
  }

  send(head, body = alloc(0)) {
    const encoded = from(stringify(head));
    const prefix = alloc(PREFIX);
    prefix.writeUInt32LE(encoded.length, 0);
    prefix.writeUInt32LE(body.length, 4);
    writeAll(this._fd, concat([prefix, encoded, body]));
  }

  _push(chunk) {
    this._chunks.push(chunk);
    this._length += chunk.length;
    while (this._length >= this._wanted) {
      const waiting = this._chunks.length === 1 ? this._chunks[0] : concat(this._chunks);
      this._chunks = [waiting];
      const headLength = waiting.readUInt32LE(0);
      const bodyLength = waiting.readUInt32LE(4);
      if (headLength > MAX_HEAD_BYTES || bodyLength > MAX_BODY_BYTES) {
        throw new Error('the guest sent something that is not a frame');
      }
      const end = PREFIX + headLength + bodyLength;
      this._wanted = end;
      if (waiting.length < end) return;
      const head = parse(waiting.toString('utf8', PREFIX, PREFIX + headLength));
      const body = waiting.subarray(PREFIX + headLength, end);
      this._chunks = end === waiting.length ? [] : [waiting.subarray(end)];
      this._length -= end;
      this._wanted = PREFIX;
      this._onFrame(head, body);
    }
  }
}

module.exports = { Channel };
