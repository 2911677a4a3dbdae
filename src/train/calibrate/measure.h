/* measure.h - what calibrate measures. */
#ifndef ZEROTRAIN_CALIBRATE_MEASURE_H
#define ZEROTRAIN_CALIBRATE_MEASURE_H

#include "train/predict/rates.h"

/* Measure, and set those rates that this device and number of ranks have. [collective] */
zero_status_t measure_kernels(zero_comm_t *comm, zero_device_t *device, fit_rates_t *rates);
zero_status_t measure_engine(zero_comm_t *comm, zero_device_t *device, fit_rates_t *rates);

#endif
