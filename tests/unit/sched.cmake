if(TARGET hy_sched)
    hy_test(sched_plan hy_sched)
    hy_test(sched_queue hy_sched)
endif()
