/* Nothing: stands for NVML where a program is linked. What it defines is found when the program runs. */
