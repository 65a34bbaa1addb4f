// Elementary functions of our own: the same bits on every machine and instruction set (numerics rule 7).
//
// The fp32 functions are correctly rounded operations and explicit FMAs in one fixed order; kernels hold vector forms
// with the same bits. They assume flush-to-zero: no denormal appears. The double functions serve tables that are then
// rounded to fp32; they neither need nor mind flush-to-zero. No libm function is used.
#pragma once

namespace quire::kernels {

// 2^x within 2 units in the last place; 0 below x = -126, +inf from 128 on. NaN stays NaN.
float exp2(float x);
// e^x within 3 units; 0 where the result would be below 2^-126, +inf from 128 / log2(e) on. NaN stays NaN.
float exp(float x);
// Natural logarithm within 2 units; -inf at 0, NaN below 0 and for NaN, +inf at +inf.
float log(float x);
// Within 3 units. NaN stays NaN.
float tanh(float x);
// 1 / (1 + e^-x) within 4 units. NaN stays NaN.
float sigmoid(float x);

// |x| <= 2^26, within 1 unit in the last place of double (at zeros of the function: within 2^-53 absolutely).
double sin(double x);
double cos(double x);
// x^y for finite x > 0 and |y * log2(x)| < 1000, within 1 unit in the last place of double.
double pow(double x, double y);
// Natural logarithm of a finite x > 0 that is no denormal, within 1 unit.
double ln(double x);

}  // namespace quire::kernels
