// The demo of mpush-redis, in the form of its props files: one literal, read but never executed.
module.exports = {
   redis: 'redis://localhost:6379/0',
   serviceNamespace: 'demo:mpush',
   in: 'demo:mpush:in',
   pending: 'demo:mpush:pending',
   popTimeout: 10,
   out: ['demo:mpush:out0', 'demo:mpush:out1'],
};
