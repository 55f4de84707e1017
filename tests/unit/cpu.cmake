hy_test(cpu_fast hy_cpu)
