/* The descent to noise levels, for one instruction set: estimators/levels.py has the equations.

Included by _kernels.h where T is double. Of a symmetric matrix only the lower triangle is stored, rows
`width` numbers apart: half the roots to compute, and half the memory to read. */

/* Returns Σ x y. */
TARGET static double NAME(dot)(const double *x, const double *y, Py_ssize_t n)
{
    NAME(V) sums;
    memset(&sums, 0, sizeof sums);
    Py_ssize_t k = 0;
    for (; k + LANES <= n; k += LANES)
        sums += *(const NAME(V) *)(x + k) * *(const NAME(V) *)(y + k);
    double rest = 0;
    for (; k < n; k++)
        rest += x[k] * y[k];
    return NAME(total)(sums) + rest;
}

/* Adds f x to y. */
TARGET static void NAME(add)(double f, const double *x, Py_ssize_t n, double *restrict y)
{
    for (Py_ssize_t k = 0; k < n; k++)
        y[k] += f * x[k];
}

/* Writes the weights and the misfits of the pairs of a party of level s with n others; adds both to
the others' sums. */
TARGET static void NAME(reweigh)(const double *restrict D, const double *restrict met, double s,
                                 const double *restrict levels, double bar, Py_ssize_t n,
                                 double *restrict v, double *restrict off, double *restrict sums,
                                 double *restrict left)
{
    for (Py_ssize_t k = 0; k < n; k++) {
        double p = s + levels[k], by = fabs(D[k] - p), none = bar * p;
        by = by > none ? by : none;
        off[k] = D[k] - p;
        v[k] = met[k] / (sqrt(p * by) * by);
        sums[k] += v[k];
        left[k] += v[k] * off[k];
    }
}

/* Forms the equations of the least squares reweighted at these levels: A, and the residual of the
right-hand side. */
TARGET static void NAME(equations)(const Fit *fit, double bar, const double *levels, double *A,
                                   Py_ssize_t width, double *left, double *room)
{
    Py_ssize_t n = fit->count;
    double *sums = room, *ones = room + width, *off = room + 2 * width;
    for (Py_ssize_t j = 0; j < n; j++) {
        double *v = A + j * width;
        NAME(reweigh)(fit->distances + j * n, fit->met + j * n, levels[j], levels, bar, j, v, off,
                      sums, left);
        ones[j] = 1;
        sums[j] = NAME(dot)(v, ones, j);
        left[j] = NAME(dot)(v, off, j);
    }
    for (Py_ssize_t j = 0; j < n; j++) {
        A[j * width + j] = (1 + fit->pull) * sums[j];
        left[j] += fit->pull * sums[j] * (fit->start[j] - levels[j]);
    }
}

/* Forms y = Ax. */
TARGET static void NAME(product)(const double *A, Py_ssize_t width, const double *x, Py_ssize_t n,
                                 double *restrict y)
{
    for (Py_ssize_t j = 0; j < n; j++) {
        const double *row = A + j * width;
        y[j] = row[j] * x[j] + NAME(dot)(row, x, j);
        NAME(add)(x[j], row, j, y);
    }
}

/* Adds the solution of the equations to x, by conjugate gradients. Returns whether it converged in a
few steps. */
TARGET static int NAME(by_gradients)(const double *A, Py_ssize_t width, const double *left,
                                     Py_ssize_t n, double *restrict x, double *room)
{
    double *restrict residual = room, *restrict correction = room + width, before = INFINITY;
    double *restrict step = room + 2 * width, *pulled = room + 3 * width, *close = room + 4 * width;
    for (Py_ssize_t k = 0; k < n; k++) {
        residual[k] = left[k];
        close[k] = SOLVED * x[k];
        step[k] = 0;
    }
    for (int steps = 0; steps < GRADIENTS; steps++) {
        int far = 0;
        for (Py_ssize_t k = 0; k < n; k++) {
            correction[k] = residual[k] / A[k * width + k];
            far |= !(fabs(correction[k]) <= close[k]);
        }
        if (!far)
            return 1;
        double size = NAME(dot)(residual, correction, n);
        for (Py_ssize_t k = 0; k < n; k++)
            step[k] = correction[k] + size / before * step[k];
        NAME(product)(A, width, step, n, pulled);
        double length = size / NAME(dot)(step, pulled, n);
        NAME(add)(length, step, n, x);
        NAME(add)(-length, pulled, n, residual);
        before = size;
    }
    return 0;
}

/* Replaces x by the solution of A · solution = x; A becomes its Cholesky factor, tile by tile. */
TARGET static void NAME(at_once)(double *A, Py_ssize_t width, Py_ssize_t n, double *restrict x)
{
    for (Py_ssize_t i = 0; i < n; i += TALL)
        for (Py_ssize_t j = 0; j < LESSER(n, i + TALL); j += WIDE) {
            Py_ssize_t known = j / LANES * LANES;
            NAME(V) sums[TALL * WIDE];
            memset(sums, 0, sizeof sums);
            if (known > 0)
                NAME(tile)(A + i * width, A + j * width, known, width, sums);
            for (Py_ssize_t p = i; p < LESSER(n, i + TALL); p++)
                for (Py_ssize_t q = j; q < LESSER(p + 1, j + WIDE); q++) {
                    double *a = A + p * width, *b = A + q * width;
                    double left = a[q] - NAME(total)(sums[(p - i) * WIDE + q - j]);
                    for (Py_ssize_t k = known; k < q; k++)
                        left -= a[k] * b[k];
                    a[q] = p == q ? sqrt(left) : left / b[q];
                }
        }
    for (Py_ssize_t j = 0; j < n; j++)
        x[j] = (x[j] - NAME(dot)(A + j * width, x, j)) / A[j * width + j];
    for (Py_ssize_t j = n - 1; j >= 0; j--) {
        x[j] /= A[j * width + j];
        NAME(add)(-x[j], A + j * width, j, x);
    }
}

/* Returns the sum of the roots of all misfits. */
TARGET static double NAME(objective)(const Fit *fit, const double *levels, double *restrict roots)
{
    double sum = 0;
    Py_ssize_t n = fit->count;
    for (Py_ssize_t j = 0; j < n; j++) {
        const double *D = fit->distances + j * n;
        double s = levels[j], exact = fit->exact;
        for (Py_ssize_t k = 0; k < j; k++) {
            double off = fabs(1 - D[k] / (s + levels[k]));
            roots[k] = sqrt(off > exact ? off : exact);
        }
        sum += NAME(dot)(roots, fit->met + j * n, j);
    }
    return 2 * sum;
}

/* Moves levels from the start to the end of a descent; returns the objective there, or infinity if
they meet the end of another one. */
TARGET static double NAME(descend)(const Fit *fit, double *levels, double *room,
                                   Py_ssize_t *iterations)
{
    Py_ssize_t n = fit->count, width = WIDTH(n);
    double *A = room + VECTORS * width, *before = room, *left = room + width;
    double *rest = room + 2 * width, bar = fit->bar > fit->exact ? fit->bar : fit->exact;
    memcpy(levels, fit->start, n * sizeof(double));
    for (*iterations = 0; (double)*iterations < fit->most;) {
        ++*iterations;
        memcpy(before, levels, n * sizeof(double));
        NAME(equations)(fit, bar, before, A, width, left, rest);
        if (n < MANY || !NAME(by_gradients)(A, width, left, n, levels, rest)) {
            NAME(at_once)(A, width, n, left);
            for (Py_ssize_t k = 0; k < n; k++)
                levels[k] = before[k] + left[k];
        }
        for (Py_ssize_t k = 0; k < n; k++)
            levels[k] = levels[k] > fit->least ? levels[k] : fit->least;
        if (bar == fit->exact && apart(levels, before, n) < fit->tolerance)
            break;
        for (Py_ssize_t e = 0; e < fit->others; e++)
            if (apart(levels, fit->ends + e * n, n) < fit->same)
                return INFINITY;
        bar = fit->hardening * bar > fit->exact ? fit->hardening * bar : fit->exact;
    }
    return NAME(objective)(fit, levels, rest);
}
