// Preload for kinesis-local (`node -r`): whatever the process listens on, it listens on 127.0.0.1 only. kinesis-local has no
// setting for that and would take every interface.
'use strict';
const net = require('net');

const original = net.Server.prototype.listen;
net.Server.prototype.listen = function listenOnLoopback(first, ...rest) {
  if (first !== null && typeof first === 'object') {
    return original.call(this, { ...first, host: '127.0.0.1' }, ...rest);
  }
  const others = typeof rest[0] === 'string' ? rest.slice(1) : rest;
  return original.call(this, first, '127.0.0.1', ...others);
};

// Where the starter keeps this process's standard input open, its end means that the starter is gone, however it ended.
if (process.env.PEER_ENDS_WITH_STDIN) {
  process.stdin.on('end', () => process.exit(0));
  process.stdin.resume();
}
