/* loss_unit.h - what head_loss adds to the loss is a multiple of this, on every device: sums of such numbers over
 * micro-steps and ranks are exact below 2^11, and so have no order. It is 2^-15 of a unit in the last place of a loss
 * of 0.1 in fp32. */
#ifndef ZERO_LOSS_UNIT_H
#define ZERO_LOSS_UNIT_H

#define ZERO_LOSS_UNIT 0x1p-42

#endif
