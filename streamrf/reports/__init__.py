"""What people look at. Plots come first, the comparison of maps builds on them, and the report on both.

plots             matplotlib, picture files, a style for each map
bounds            how many features theory asks for, beside the kernel error that is measured
comparison        maps side by side on a sample of rows; comparison_plots draws it
page              the report's HTML page and the look of its pictures
evidence          the model, its sums and a sample of rows: what a report is made from
accuracy, usage, history    the sections of a report
report            from a model to a page
"""
