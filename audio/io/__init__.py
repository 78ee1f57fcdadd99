"""Sound devices, real and simulated, and the process that runs one."""
